"""Noise on a cell's value: how large it is, whose it is, and the point that is found with it."""

import pytest
import torch

from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.noise import ValueNoise
from implicit_models.equilibrium.phase import SearchSettings
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import ResidualBelow
from tests.equilibrium.cells import affine_cell

NOISE = ValueNoise(0.3, seed=5)


class _Seen:
    """A cell that gives back what it has read."""

    def __call__(self, value):
        return value

    def select(self, rows):
        return self


def test_noise_is_measured_in_the_size_of_each_token():
    sizes = torch.tensor([0.01, 1.0, 50.0], dtype=torch.float64)[:, None]
    value = torch.randn(2000, 3, 16, dtype=torch.float64) * sizes
    added = NOISE(_Seen(), value)(value) - value
    relative = added / value.square().mean(-1, keepdim=True).sqrt()
    assert relative.mean((0, 2)).abs().max() < 0.01
    assert relative.std((0, 2)) == pytest.approx(torch.full((3,), 0.3).double(), rel=0.02)
    larger = NOISE(_Seen(), value)(4 * value)
    assert torch.allclose(larger, 4 * (value + added))


def test_noise_is_that_of_the_seed_and_follows_its_sequence():
    value = torch.randn(5, 4, 3)
    whole = NOISE(_Seen(), value)(value)
    assert torch.equal(whole, NOISE(_Seen(), value)(value))
    assert not torch.equal(whole, ValueNoise(0.3, seed=6)(_Seen(), value)(value))
    rows = torch.tensor([3, 0])
    assert torch.equal(NOISE(_Seen(), value).select(rows)(value[rows]), whole[rows])


def test_the_point_found_is_that_of_the_noisy_cell():
    cell, start = affine_cell([0.3, 0.5, 0.6]), torch.zeros(3, 3, 4, dtype=torch.float64)
    noisy = NOISE(cell, start)
    stopping = ResidualBelow(1e-12, 500)
    found = find_fixed_point(noisy, start, Picard(0.7), stopping).value
    assert torch.allclose(noisy(found), found, atol=1e-10)
    assert not torch.allclose(cell(found), found, atol=1e-3)
    plain = find_fixed_point(cell, start, Picard(0.7), stopping).value
    nearly = find_fixed_point(ValueNoise(1e-9)(cell, start), start, Picard(0.7), stopping).value
    assert torch.allclose(nearly, plain, atol=1e-7)


def test_a_phase_adds_noise_where_gradients_are_taken():
    phase = SearchSettings(tolerance=1e-3, max_steps=9).phase("phantom", 2, noise=NOISE)
    cell, like = affine_cell([0.3, 0.5, 0.6]), torch.zeros(3, 3, 4)
    assert phase.noisy(cell, like) is not cell
    with torch.no_grad():
        assert phase.noisy(cell, like) is cell
    assert SearchSettings(tolerance=1e-3, max_steps=9).phase().noisy(cell, like) is cell


def test_noise_has_a_size():
    with pytest.raises(ValueError, match="size"):
        ValueNoise(0.0)
