"""The penalty and the spectral radius against dense Jacobians and finite differences."""

from dataclasses import dataclass

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.jacobian import (
    JacobianPenalty,
    spectral_radius,
    token_spectral_radius,
)
from implicit_models.equilibrium.phase import Phase, bounded_phase, search_phase
from implicit_models.language_models.modelling import ImplicitForCausalLM
from tests.equilibrium.cells import AffineCell, affine_cell
from tests.language_models.models import IMPLICIT, IMPLICIT_FAMILIES, our_model, tokens

FREE = search_phase(1e-12, 2000, 1.0)
FAMILIES = pytest.mark.parametrize("family", IMPLICIT_FAMILIES)
INSIDE = {
    "mamba2": ["0.mixer.in_proj.weight", "1.mixer.conv1d.scale", "1.mixer.A_log"],
    "llama": ["0.mixer.qkv_proj.weight", "1.mixer.out_proj.scale", "1.feed_forward_norm"],
}
INSIDE |= dict.fromkeys(("sliding", "padded"), INSIDE["llama"])


@dataclass
class TanhCell:
    """``f(z) = tanh(z @ matrix + offset)``; every token by itself."""

    matrix: torch.Tensor
    offset: torch.Tensor

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return (value @ self.matrix + self.offset).tanh()

    def select(self, rows: torch.Tensor) -> "TanhCell":
        return TanhCell(self.matrix, self.offset[rows])


def tanh_cell(batch: int = 2, length: int = 3, width: int = 4) -> tuple[TanhCell, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(width, width, generator=draw, dtype=torch.float64) / 2
    offset, value = torch.randn(2, batch, length, width, generator=draw, dtype=torch.float64)
    return TanhCell(matrix, offset), value


def dense_jacobians(cell, value: torch.Tensor) -> torch.Tensor:
    """Each sequence's own Jacobian: (B, L D, L D)."""
    batch = len(value)
    jacobian = torch.autograd.functional.jacobian(cell, value)
    own = [jacobian[row, :, :, row] for row in range(batch)]
    return torch.stack(own).reshape(batch, value[0].numel(), -1)


def largest_eigenvalue(jacobian: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvals(jacobian).abs().amax(-1)


def model_at_fixed_point(
    batch: int = 2, length: int = 5, family: str = "mamba2"
) -> tuple[ImplicitForCausalLM, torch.Tensor, torch.Tensor]:
    model = our_model(IMPLICIT_FAMILIES[family])
    text = tokens(batch, length)
    cell, start = model.cell(text)
    return model, text, find_fixed_point(cell, start, FREE.solver, FREE.stopping).value


def test_penalty_is_the_weighted_frobenius_norm() -> None:
    cell, value = tanh_cell()
    expected = dense_jacobians(cell, value).square().sum() / value.numel()
    penalty = JacobianPenalty(0.7, num_samples=1000, seed=0)(cell, value)
    torch.testing.assert_close(penalty, 0.7 * expected, rtol=0.02, atol=0)


def test_every_call_draws_signs_of_its_own_from_torchs_generator() -> None:
    cell, value = tanh_cell()
    penalty = JacobianPenalty(0.7, num_samples=2)
    torch.manual_seed(3)
    drawn = [penalty(cell, value).item() for _ in range(4)]
    assert len(set(drawn)) == 4
    torch.manual_seed(3)
    assert [penalty(cell, value).item() for _ in range(4)] == drawn


def test_a_seed_fixes_the_signs_and_leaves_torchs_generator_alone() -> None:
    cell, value = tanh_cell()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again = (JacobianPenalty(0.7, 2, seed=5)(cell, value) for _ in range(2))
    assert torch.equal(first, again)
    assert JacobianPenalty(0.7, 2, seed=6)(cell, value) != first
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(JacobianPenalty(0.7, 2)(cell, value), first)


def test_evaluating_the_penalty_again_draws_the_same_signs() -> None:
    cell, value = tanh_cell()
    cell.matrix.requires_grad_()
    slopes = []
    for again in (False, True):
        cell.matrix.grad = None
        torch.manual_seed(3)
        penalty = JacobianPenalty(0.7, num_samples=2)
        if again:
            found = checkpoint(penalty, cell, value, use_reentrant=False)
            torch.rand(5)  # what a model draws in between
        else:
            found = penalty(cell, value)
        found.backward()
        assert cell.matrix.grad is not None
        slopes.append(cell.matrix.grad)
    assert torch.equal(*slopes)


def test_one_sample_is_exact_where_the_jacobian_is_a_scaled_rotation() -> None:
    contractions = [0.6, 0.3, 0.9]
    cell = affine_cell(contractions)
    expected = torch.tensor(contractions, dtype=torch.float64).square().mean()
    for weight in (1.0, 0.25):
        for lengths in (None, torch.tensor([3, 1, 2])):
            penalty = JacobianPenalty(weight)(cell, torch.zeros_like(cell.offset), lengths)
            torch.testing.assert_close(penalty, weight * expected)


@FAMILIES
def test_padding_does_not_count(family: str) -> None:
    model, text, value = model_at_fixed_point(1, 7, family)
    results = []
    for cut, lengths in ((5, None), (7, torch.tensor([5]))):
        cell, _ = model.cell(text[:, :cut])
        results.append(JacobianPenalty(1.0, seed=0)(cell, value[:, :cut], lengths))
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=0)


@FAMILIES
@pytest.mark.parametrize("num_samples", [1, 3])
def test_gradient_of_the_penalty_is_finite_differences(family: str, num_samples: int) -> None:
    model, text, value = model_at_fixed_point(family=family)
    penalty = JacobianPenalty(1000.0, num_samples, seed=0)

    def evaluate() -> torch.Tensor:
        return penalty(model.cell(text)[0], value)

    evaluate().backward()
    draw = torch.Generator().manual_seed(1)
    names = [f"model.stack.blocks.{name}" for name in INSIDE[family]]
    for name in (*names, "model.injection.projection.weight", "model.embed_tokens.weight"):
        parameter = model.get_parameter(name)
        direction = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        assert parameter.grad is not None
        with torch.no_grad():
            parameter.add_(direction, alpha=1e-6)
            above = evaluate()
            parameter.sub_(direction, alpha=2e-6)
            below = evaluate()
            parameter.add_(direction, alpha=1e-6)
        slope = (parameter.grad * direction).sum()
        assert slope.abs() > 1e-3, name
        torch.testing.assert_close(slope, (above - below) / 2e-6, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "phase", [bounded_phase(3), Phase(FREE.solver, FREE.stopping, bounded_phase(2).gradient)]
)
@FAMILIES
def test_a_models_output_carries_the_penalty_at_its_value(family: str, phase: Phase) -> None:
    model, text, _ = model_at_fixed_point(family=family)
    assert model(text, phase=phase).penalty is None
    penalty = JacobianPenalty(0.3, num_samples=2, seed=0)
    penalised = Phase(phase.solver, phase.stopping, phase.gradient, penalty=penalty)
    given = model(text, phase=penalised).penalty
    cell, start = model.cell(text)
    value = find_fixed_point(cell, start, phase.solver, phase.stopping).value
    assert phase.gradient is not None
    value = phase.gradient(cell, value)
    expected = penalty(cell, value)
    torch.testing.assert_close(given, expected)
    reached = [
        torch.autograd.grad(each, tuple(model.model.stack.parameters()), allow_unused=True)
        for each in (given, expected)
    ]
    assert sum(gradient is not None and bool(gradient.any()) for gradient in reached[0]) > 10
    for ours, theirs in zip(*reached, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_descending_the_penalty_makes_the_cell_contract() -> None:
    model, text, value = model_at_fixed_point(1, 3)
    optimiser = torch.optim.Adam(model.model.stack.parameters(), 3e-3)
    before = dense_jacobians(model.cell(text)[0], value).square().sum()
    for _ in range(20):
        optimiser.zero_grad()
        JacobianPenalty(1.0)(model.cell(text)[0], value).backward()
        optimiser.step()
    after = dense_jacobians(model.cell(text)[0], value).square().sum()
    assert after < 0.7 * before


def test_without_gradient_the_penalty_is_a_number() -> None:
    cell, value = tanh_cell()
    cell.matrix.requires_grad_()
    values = []
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            values.append(JacobianPenalty(1.0, num_samples=2, seed=0)(cell, value))
    assert [each.requires_grad for each in values] == [True, False]
    assert torch.equal(*values)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4)])
def test_where_there_are_no_tokens_there_is_nothing_to_add(shape: tuple[int, int, int]) -> None:
    offset = torch.ones(shape, dtype=torch.float64)
    cell = AffineCell(torch.eye(4, dtype=torch.float64), offset)
    assert JacobianPenalty(1.0)(cell, offset) == 0.0


def matrices() -> torch.Tensor:
    """Real, complex in two guises, beyond one, nilpotent, and a general matrix."""
    draw = torch.Generator().manual_seed(0)
    basis = torch.randn(4, 4, generator=draw, dtype=torch.float64)
    pair = torch.tensor([[0.3, 0.8], [-0.5, 0.3]]).double()
    small = torch.tensor([[0.2, 0.1], [0.0, -0.3]]).double()
    chosen = [
        torch.tensor([0.9, -0.4, 0.2, 0.1]).double().diag(),
        torch.block_diag(pair, small),
        basis @ torch.block_diag(pair, small) @ torch.linalg.inv(basis),
        torch.tensor([-1.4, 0.9, 0.2, 0.1]).double().diag(),
        torch.ones(4, 4, dtype=torch.float64).triu(1),
        torch.randn(4, 4, generator=draw, dtype=torch.float64) / 2,
    ]
    return torch.stack(chosen)


def test_spectral_radius_of_known_matrices() -> None:
    cell = AffineCell(matrices(), torch.zeros(6, 1, 4, dtype=torch.float64))
    expected = largest_eigenvalue(dense_jacobians(cell, cell.offset))
    torch.testing.assert_close(spectral_radius(cell, cell.offset), expected, rtol=0.05, atol=0)
    torch.testing.assert_close(
        spectral_radius(cell, cell.offset, 200), expected, rtol=0.005, atol=0
    )
    assert expected[4] == 0.0


def test_spectral_radius_is_that_of_the_point_and_of_all_tokens() -> None:
    cell, value = tanh_cell(4)
    expected = largest_eigenvalue(dense_jacobians(cell, value))
    torch.testing.assert_close(spectral_radius(cell, value, 200), expected, rtol=0.02, atol=0)
    elsewhere = spectral_radius(cell, 3 * value, 200)
    assert ((elsewhere / expected - 1).abs() > 0.1).any()


def test_random_matrices_come_as_near_as_documented() -> None:
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(100, 64, 64, generator=draw, dtype=torch.float64) / 8
    cell = AffineCell(matrix, torch.zeros(100, 1, 64, dtype=torch.float64))
    expected = largest_eigenvalue(matrix)
    for num_iterations, error in ((32, 0.05), (64, 0.02)):
        estimate = spectral_radius(cell, cell.offset, num_iterations)
        assert (estimate / expected - 1).abs().quantile(0.9) < error


def test_spectral_radius_does_not_depend_on_the_place_in_the_batch() -> None:
    cell = AffineCell(matrices(), torch.zeros(6, 1, 4, dtype=torch.float64))
    together = spectral_radius(cell, cell.offset)
    for row in range(6):
        alone = cell.select(torch.tensor([row]))
        torch.testing.assert_close(spectral_radius(alone, alone.offset)[0], together[row])


@FAMILIES
def test_token_spectral_radius_is_that_of_the_dense_jacobians_blocks(family: str) -> None:
    model, text, _ = model_at_fixed_point(2, 3, family)
    carry = model(text, phase=FREE, use_cache=True).cache.carry
    for before in (None, carry):
        cell, start = model.cell(text, before)
        value = find_fixed_point(cell, start, FREE.solver, FREE.stopping).value
        dense = dense_jacobians(cell, value)
        blocks = dense.view(2, 3, 16, 3, 16)
        by_token = torch.stack([largest_eigenvalue(blocks[:, t, :, t]) for t in range(3)], dim=1)
        radii = token_spectral_radius(cell, value, 200)
        torch.testing.assert_close(radii, by_token, rtol=0.01, atol=0)
        torch.testing.assert_close(radii.amax(1), largest_eigenvalue(dense), rtol=0.01, atol=0)


def test_no_tokens_have_no_spectral_radius() -> None:
    model = our_model(IMPLICIT)
    assert token_spectral_radius(*model.cell(tokens(2, 0))).shape == (2, 0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: JacobianPenalty(0.0), "weight is 0.0"),
        (lambda: JacobianPenalty(-1.0), "weight is -1.0"),
        (lambda: JacobianPenalty(float("nan")), "weight is nan"),
        (lambda: JacobianPenalty(1.0, 0), "num_samples is 0"),
        (lambda: spectral_radius(*tanh_cell(), 0), "num_iterations is 0"),
    ],
)
def test_impossible_values_are_named(make, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()
