"""Gradients at a fixed point: finite differences, the closed form, and the phantom's approach."""

import pytest
import torch

from implicit_models.equilibrium.gradients import Phantom, Unrolled
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase, bounded_phase, free_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow
from tests.equilibrium.cells import AffineCell, affine_cell


def gradient_of_offset(gradient: Unrolled | Phantom, from_fixed_point: bool) -> torch.Tensor:
    cell = affine_cell([0.6, 0.3])
    offset = cell.offset.clone().requires_grad_()
    cell = AffineCell(cell.matrix, offset)
    value = torch.zeros_like(offset)
    if from_fixed_point:
        value = find_fixed_point(cell, value, Picard(), ResidualBelow(1e-14, 500)).value
    gradient(cell, value).sin().sum().backward()
    assert offset.grad is not None
    return offset.grad


def exact_gradient() -> torch.Tensor:
    cell = affine_cell([0.6, 0.3])
    offset = cell.offset.clone().requires_grad_()
    AffineCell(cell.matrix, offset).fixed_point().sin().sum().backward()
    assert offset.grad is not None
    return offset.grad


def test_many_unrolled_steps_give_the_exact_gradient() -> None:
    torch.testing.assert_close(gradient_of_offset(Unrolled(100), False), exact_gradient())


def test_unrolled_gradient_is_finite_differences() -> None:
    cell = affine_cell([0.6])

    def unrolled(offset: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return Unrolled(3)(AffineCell(matrix, offset), torch.zeros_like(offset))

    inputs = (cell.offset.requires_grad_(), cell.matrix.requires_grad_())
    assert torch.autograd.gradcheck(unrolled, inputs)


@pytest.mark.parametrize("damping", [0.5, 0.8, 1.0])
def test_phantom_approaches_the_exact_gradient(damping: float) -> None:
    exact = exact_gradient()
    errors = [
        (gradient_of_offset(Phantom(steps, damping), True) - exact).norm().item()
        for steps in (1, 3, 10, 200)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-10 * exact.norm()


def test_one_phantom_step_is_the_damped_jacobian() -> None:
    cell = affine_cell([0.6, 0.3])
    offset = cell.offset.clone().requires_grad_()
    solution = AffineCell(cell.matrix, cell.offset).fixed_point()
    Phantom(1, 0.7)(AffineCell(cell.matrix, offset), solution).sum().backward()
    torch.testing.assert_close(offset.grad, torch.full_like(offset, 0.7))


def test_impossible_values_are_named() -> None:
    with pytest.raises(ValueError, match="num_steps is 0"):
        Unrolled(0)
    with pytest.raises(ValueError, match="damping is 2.5"):
        Phantom(3, 2.5)


def test_bounded_and_free_differ_only_in_their_phase() -> None:
    bounded, free = bounded_phase(4), free_phase(0.05, 16, 3, 0.8)
    assert type(bounded) is type(free)
    assert bounded == Phase(Picard(), FixedSteps(0), Unrolled(4))
    assert free == Phase(Picard(0.8), ResidualBelow(0.05, 16), Phantom(3, 0.8))


def test_undamped_phantom_steps_from_zero_are_the_bounded_phase() -> None:
    results = []
    for gradient in (Unrolled(4), Phantom(4, 1.0)):
        cell = affine_cell([0.6, 0.3])
        offset = cell.offset.clone().requires_grad_()
        value = gradient(AffineCell(cell.matrix, offset), torch.zeros_like(offset))
        value.sin().sum().backward()
        results.append((value, offset.grad))
    for bounded, phantom in zip(*results, strict=True):
        assert torch.equal(bounded, phantom)
