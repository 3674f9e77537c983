"""When a search of whole sequences ends: measures, limits, and what a sequence's mates see."""

from typing import Any

import pytest
import torch

from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.broyden import Broyden
from implicit_models.equilibrium.gradients import Phantom, Unrolled
from implicit_models.equilibrium.iterate import _check_lengths, _check_start, find_fixed_point
from implicit_models.equilibrium.solution import Result
from implicit_models.equilibrium.solvers import BestSoFar, Picard, Solver
from implicit_models.equilibrium.stopping import (
    FixedSteps,
    ResidualBelow,
    absolute_residual,
    relative_residual,
)
from implicit_models.equilibrium.window import Window
from tests.equilibrium.cells import (
    CHANGES,
    AffineCell,
    ChangingCell,
    ScriptedCell,
    affine_cell,
    causal_cell,
)

nan = float("nan")


def test_measures_are_per_token() -> None:
    value = torch.tensor([[[0.0, 0.0], [3.0, 4.0]], [[1.0, 1.0], [0.0, 5.0]]])
    evaluated = torch.tensor([[[0.0, 2.0], [6.0, 8.0]], [[1.0, 1.0], [0.0, 4.0]]])
    assert absolute_residual(value, evaluated).tolist() == [[2, 5], [0, 1]]
    assert relative_residual(value, evaluated).tolist() == [[1, 0.5], [0, 0.25]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_relative_residual_is_finite_where_the_cell_vanishes(dtype: torch.dtype) -> None:
    value = torch.tensor([[[0.0, 0.0], [3.0, 4.0], [1e4, 0.0]]], dtype=dtype)
    residual = relative_residual(value, torch.zeros_like(value))
    assert residual.isfinite().all()
    assert residual[0, 0] == 0 and (residual[0, 1:] > 1).all()


def test_a_cell_that_maps_all_to_zero_converges_there() -> None:
    cell = AffineCell(torch.zeros(4, 4).double(), torch.zeros(2, 3, 4).double())
    solution = find_fixed_point(
        cell, torch.ones_like(cell.offset), Picard(), ResidualBelow(1e-6, 5)
    )
    assert (solution.result == Result.CONVERGED).all()
    assert not solution.value.any()


@pytest.mark.parametrize("measure", [absolute_residual, relative_residual])
def test_the_tolerance_is_in_the_measure(measure) -> None:
    cell = affine_cell([0.5])
    cell.offset *= 1e3
    stopping = ResidualBelow(1e-3, 500, measure)
    value, expected = torch.zeros_like(cell.offset), 0
    while True:
        expected, before, value = expected + 1, value, cell(value)
        if (residual := measure(before, value).amax()) < 1e-3:
            break
    solution = find_fixed_point(cell, torch.zeros_like(value), Picard(), stopping)
    assert solution.steps[:, 0].tolist() == [expected]
    assert torch.equal(solution.residual[0, 0], residual)
    assert torch.equal(solution.value, value)


@pytest.mark.parametrize("max_steps", [1, 2, 5, 8])
def test_a_sequence_ends_with_its_worst_token(max_steps: int) -> None:
    ones = [1.0] * 9
    script = [
        [[1, 0.01, 1, 1, 0.01, *ones], [1, 1, 1, 0.01, 0.01, *ones]],  # both below at 5
        [[0.01, *ones, 1, 1, 1, 1], [0.01, 1, 1, 1, 1, *ones]],  # at 1
        [[*ones, 1, 1, 1, 1, 1], [0.01] * 14],  # never
        [[1, 1, nan, *ones, 1, 1], [1.0, 1, 1, *ones, 1, 1]],  # explodes at 3
    ]
    cell = ScriptedCell.of(torch.tensor(script))
    stopping = ResidualBelow(0.1, max_steps, absolute_residual)
    solution = find_fixed_point(cell, cell.start, Picard(), stopping)
    ends = [(5, Result.CONVERGED), (1, Result.CONVERGED), (99, Result.OUT_OF_STEPS)]
    for row, (step, result) in enumerate([*ends, (3, Result.NON_FINITE)]):
        steps = min(step, max_steps)
        assert solution.steps[row] == solution.depth[row] == steps
        assert solution.result[row] == (result if step <= max_steps else Result.OUT_OF_STEPS)
        assert cell.evaluations[row].tolist() == [steps] * 2
        assert solution.token_evaluations[row] == 2 * steps
        kept = steps - (solution.result[row] == Result.NON_FINITE).long()
        reached = torch.tensor(script[row])[:, :kept].double().sum(1)
        torch.testing.assert_close(solution.value[row, :, 0], reached)
        worst = torch.tensor(script[row])[:, steps - 1].amax().double()
        torch.testing.assert_close(solution.residual[row, 0], worst, equal_nan=True)


def test_fixed_steps_go_on_whatever_the_residual_but_not_for_what_explodes() -> None:
    script = [[[1, nan, 1, 1]], [[0.001] * 4], [[1.0] * 4]]
    cell = ScriptedCell.of(torch.tensor(script))
    solution = find_fixed_point(cell, cell.start, Picard(), FixedSteps(4, absolute_residual))
    assert solution.steps[:, 0].tolist() == [2, 4, 4]
    assert solution.result[:, 0].tolist() == [Result.NON_FINITE, *[Result.OUT_OF_STEPS] * 2]
    torch.testing.assert_close(solution.value.flatten().tolist(), [1.0, 0.004, 4.0])
    assert cell.evaluations.flatten().tolist() == [2, 4, 4]


@pytest.mark.parametrize("search", ["whole", "padded", "window"])
@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_a_cell_that_changes_its_state_is_named(change, named: str, search: str) -> None:
    start = torch.zeros(2, 3, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"the cell changes the {named}"):
        find_fixed_point(
            ChangingCell(change),
            start,
            Picard(0.7),
            ResidualBelow(0.1, 5),
            window=Window(3, 2) if search == "window" else None,
            lengths=torch.tensor([3, 3]) if search == "padded" else None,
        )


@pytest.mark.parametrize(
    ("lengths", "match"),
    [
        ([7, 7, 7], r"lengths has the shape \(3,\); it must be \(4,\)"),
        ([[7] * 4], r"lengths has the shape \(1, 4\); it must be \(4,\)"),
        ([7, 8, 0, 1], "lengths lie between 0 and 8; .* number of tokens, 7"),
        ([7, -1, 0, 1], "lengths lie between -1 and 7"),
    ],
)
def test_lengths_that_do_not_fit_are_named(lengths: list, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        _check_lengths(torch.tensor(lengths), 4, 7)  # where shapes are not checked beforehand


@pytest.mark.parametrize("window", [None, Window(3)])
def test_lengths_out_of_range_end_the_search(window: Window | None) -> None:
    cell = causal_cell()
    stopping = ResidualBelow(1e-3, 5)
    with pytest.raises(ValueError, match="lengths lie between 1 and 8"):
        lengths = torch.tensor([1, 8, 2, 3])
        find_fixed_point(cell, cell.offset, Picard(), stopping, window=window, lengths=lengths)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, nan])
def test_an_impossible_tolerance_is_named(tolerance: float) -> None:
    with pytest.raises(ValueError, match=f"tolerance is {tolerance}; it must be positive"):
        ResidualBelow(tolerance, 5)


@pytest.mark.parametrize("max_steps", [0, -3])
def test_impossible_maxima_are_named(max_steps: int) -> None:
    with pytest.raises(ValueError, match=f"max_steps is {max_steps}; it must be 1 or more"):
        ResidualBelow(0.1, max_steps)


def test_a_patience_beyond_the_steps_is_named() -> None:
    cell = causal_cell()
    with pytest.raises(ValueError, match="patience is 4; it must be at most max_steps, 3"):
        find_fixed_point(cell, cell.offset, Picard(), ResidualBelow(0.1, 3), window=Window(2, 4))


@pytest.mark.parametrize("solver", [Picard(), BestSoFar(Picard())])
def test_a_sequence_that_diverges_is_never_called_converged(solver: Solver) -> None:
    class Tripling:
        def __call__(self, value: torch.Tensor) -> torch.Tensor:
            return 3 * value + 1

        def select(self, rows: torch.Tensor) -> "Tripling":
            return self

    solution = find_fixed_point(Tripling(), torch.ones(2, 1, 2), solver, ResidualBelow(1e-6, 200))
    assert (solution.result == Result.NON_FINITE).all()
    assert solution.value.isfinite().all()


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (torch.zeros(3, 4), r"shape \(3, 4\) and the dtype torch.float32"),
        (torch.zeros(2, 3, 4, dtype=torch.int64), "dtype torch.int64"),
        (torch.zeros(2, 3, 4, 5), r"shape \(2, 3, 4, 5\)"),
    ],
)
def test_a_start_that_is_no_batch_of_sequences_is_named(start: torch.Tensor, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        _check_start(start)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedSteps(2.5),
        lambda: ResidualBelow(0.1, 2.5),
        lambda: Window(1.5),
        lambda: Window(2, 1.5),
        lambda: Anderson(1.5),
        lambda: Broyden(1.5),
        lambda: Unrolled(2.5),
        lambda: Phantom(2.5, 0.5),
    ],
)
def test_counts_are_whole(make: Any) -> None:
    with pytest.raises(Exception, match=r"\.5"):
        make()
