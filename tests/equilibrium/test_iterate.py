"""The search: it finds fixed points, ends each sequence by itself, and says how."""

import pytest
import torch

from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.solution import Result
from implicit_models.equilibrium.solvers import BestSoFar, Picard, Solver
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow, relative_residual
from implicit_models.equilibrium.window import Window
from tests.equilibrium.cells import AffineCell, CausalSineCell, affine_cell, causal_cell

UNEQUAL = [0.1, 0.9, 0.5, 0.7]


@pytest.mark.parametrize("damping", [0.5, 1.0, 1.3])
def test_value_is_the_fixed_point(damping: float) -> None:
    cell = affine_cell([0.1, 0.3, 0.2, 0.05])
    start = torch.zeros_like(cell.offset)
    solution = find_fixed_point(cell, start, Picard(damping), ResidualBelow(1e-13, 500))
    assert (solution.result == Result.CONVERGED).all()
    torch.testing.assert_close(solution.value, cell.fixed_point())
    torch.testing.assert_close(cell(solution.value), solution.value)


def test_harder_sequences_take_more_steps_and_batch_mates_change_nothing() -> None:
    cell = affine_cell(UNEQUAL)
    start = torch.zeros_like(cell.offset)
    stopping = ResidualBelow(1e-6, 1000)
    together = find_fixed_point(cell, start, Picard(), stopping)
    assert together.steps[0] < together.steps[2] < together.steps[3] < together.steps[1]
    for row in range(len(UNEQUAL)):
        rows = torch.tensor([row])
        alone = find_fixed_point(cell.select(rows), start[rows], Picard(), stopping)
        assert alone.steps[0] == together.steps[row]
        torch.testing.assert_close(alone.value[0], together.value[row], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(alone.residual[0], together.residual[row])


def test_sequences_that_have_ended_cost_nothing() -> None:
    cell = affine_cell(UNEQUAL)
    cell.evaluated = []
    start = torch.zeros_like(cell.offset)
    solution = find_fixed_point(cell, start, Picard(), ResidualBelow(1e-6, 1000))
    assert sum(cell.evaluated) == solution.steps.sum()


@pytest.mark.parametrize("max_steps", [7, 40, 300])
@pytest.mark.parametrize("solver", [Picard(0.9), BestSoFar(Picard()), Anderson(3)], ids=str)
def test_looking_seldom_changes_nothing(solver: Solver, max_steps: int) -> None:
    def cell() -> AffineCell:
        return affine_cell([0.3, 0.9, 0.5, 0.8, 1.5])

    start = torch.zeros(5, 3, 4, dtype=torch.float64)
    stopping = ResidualBelow(1e-6, max_steps)
    often = find_fixed_point(cell(), start, solver, stopping, sync_every=1)
    for sync_every in (2, 4, 64):
        seldom = find_fixed_point(cell(), start, solver, stopping, sync_every=sync_every)
        for name in ("value", "steps", "residual", "result", "depth", "token_evaluations"):
            found, expected = getattr(seldom, name), getattr(often, name)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=0, equal_nan=True)


def test_out_of_steps_is_said_with_the_last_iterate() -> None:
    cell = affine_cell([0.9, 0.1])
    start = torch.zeros_like(cell.offset)
    solution = find_fixed_point(cell, start, Picard(), ResidualBelow(1e-4, 6))
    assert solution.result[:, 0].tolist() == [Result.OUT_OF_STEPS, Result.CONVERGED]
    assert solution.steps[0] == 6
    expected = start
    for _ in range(6):
        expected = cell(expected)
    torch.testing.assert_close(solution.value[0], expected[0])


def test_a_sequence_that_explodes_ends_alone() -> None:
    cell = affine_cell([0.5, 1e60, 0.5])
    start = torch.zeros_like(cell.offset)
    solution = find_fixed_point(cell, start, Picard(), ResidualBelow(1e-6, 100))
    ended = [Result.CONVERGED, Result.NON_FINITE, Result.CONVERGED]
    assert solution.result[:, 0].tolist() == ended
    assert solution.value.isfinite().all()
    torch.testing.assert_close(solution.value[::2], cell.fixed_point()[::2], rtol=1e-5, atol=1e-5)


def test_fixed_steps_are_plain_iterations_with_the_residual_of_the_last() -> None:
    cell = affine_cell(UNEQUAL)
    value = torch.zeros_like(cell.offset)
    solution = find_fixed_point(cell, value, Picard(0.8), FixedSteps(3))
    for _ in range(3):
        before, after = value, cell(value)
        value = before + 0.8 * (after - before)
    torch.testing.assert_close(solution.value, value)
    torch.testing.assert_close(solution.residual[:, 0], relative_residual(before, after).amax(1))
    assert solution.steps[:, 0].tolist() == [3] * 4


def test_no_steps_leave_the_start() -> None:
    cell = affine_cell(UNEQUAL)
    solution = find_fixed_point(cell, cell.offset, Picard(), FixedSteps(0))
    assert torch.equal(solution.value, cell.offset)
    assert solution.steps[:, 0].tolist() == [0] * 4


def test_observer_sees_every_token_and_the_last_of_ended_sequences() -> None:
    cell = affine_cell([0.1, 0.9])
    seen: list[torch.Tensor] = []
    start = torch.zeros_like(cell.offset)
    solution = find_fixed_point(
        cell,
        start,
        Picard(),
        ResidualBelow(1e-3, 50),
        observe=lambda _, tokens: seen.append(tokens),
    )
    assert len(seen) == solution.steps.max()
    assert seen[0].shape == (2, 3)
    torch.testing.assert_close(seen[-1].amax(1), solution.residual[:, 0])
    assert torch.equal(seen[-1][0], seen[int(solution.steps[0]) - 1][0])


@pytest.mark.parametrize("shape", [(1, 1, 4), (0, 3, 4), (2, 0, 4)])
def test_small_shapes(shape: tuple[int, int, int]) -> None:
    offset = torch.ones(shape, dtype=torch.float64)
    cell = AffineCell(torch.eye(4, dtype=torch.float64) * 0.5, offset)
    start = torch.zeros_like(offset)
    solution = find_fixed_point(cell, start, Picard(), ResidualBelow(1e-12, 100))
    torch.testing.assert_close(solution.value, cell.fixed_point())


def in_float32(value: torch.Tensor, evaluated: torch.Tensor) -> torch.Tensor:
    return relative_residual(value.float(), evaluated.float())


@pytest.mark.parametrize(
    ("solver", "window"),
    [(Picard(), None), (Picard(), Window(2, 1)), (BestSoFar(Picard()), None)],
    ids=str,
)
def test_a_residual_may_be_measured_in_another_precision(
    solver: Solver, window: Window | None
) -> None:
    precise = causal_cell(2)
    cell = CausalSineCell(precise.contraction.bfloat16(), precise.offset.bfloat16())
    stopping, seen = ResidualBelow(0.02, 60, in_float32), []
    solution = find_fixed_point(
        cell,
        torch.zeros_like(cell.offset),
        solver,
        stopping,
        window=window,
        observe=lambda step, residual: seen.append(residual),
    )
    assert solution.residual.dtype == seen[0].dtype == torch.bfloat16
    assert (solution.result == Result.CONVERGED).all() and (solution.residual < 0.02).all()
    torch.testing.assert_close(solution.value.double(), precise.fixed_point(), rtol=0.1, atol=0.1)


def test_the_search_keeps_no_graph() -> None:
    cell = affine_cell([0.5])
    cell.offset.requires_grad_()
    start = torch.zeros_like(cell.offset)
    assert not find_fixed_point(cell, start, Picard(), FixedSteps(3)).value.requires_grad


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Picard(0.0), "damping is 0.0"),
        (lambda: Picard(2.0), "damping is 2.0"),
        (lambda: ResidualBelow(0.0, 5), "tolerance is 0.0"),
        (lambda: ResidualBelow(float("nan"), 5), "tolerance is nan"),
        (lambda: ResidualBelow(0.1, 0), "max_steps is 0"),
        (lambda: FixedSteps(-1), "num_steps is -1"),
    ],
)
def test_impossible_values_are_named(make, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()
