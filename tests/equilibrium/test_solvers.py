"""Solvers: against references written out here, and every promise they share."""

import dataclasses
from typing import Any

import pytest
import torch

from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.broyden import Broyden
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.equilibrium.solvers import BestSoFar, Picard, Solver
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow, absolute_residual
from tests.equilibrium.cells import AffineCell, ScriptedCell, affine_cell, causal_cell

SOLVERS: list[Solver] = [
    Picard(),
    Picard(0.6),
    Anderson(),
    Anderson(3, 0.7),
    Broyden(),
    Broyden(4, 0.7),
    BestSoFar(Picard(0.6)),
    BestSoFar(Anderson()),
    BestSoFar(Broyden(4)),
]
TIGHT = ResidualBelow(1e-11, 500)
every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=str)


@dataclasses.dataclass
class TanhCell:
    """``f(z) = tanh(z @ matrix) + offset``."""

    matrix: torch.Tensor  # (B, D, D)
    offset: torch.Tensor  # (B, L, D)

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return (value @ self.matrix).tanh() + self.offset

    def select(self, rows: torch.Tensor) -> "TanhCell":
        return TanhCell(self.matrix[rows], self.offset[rows])


def tanh_cell(contractions: list[float], length: int = 2) -> TanhCell:
    affine = affine_cell(contractions, length)
    return TanhCell(affine.matrix, affine.offset)


def iterates(solver: Solver, cell: Any, num_steps: int) -> list[torch.Tensor]:
    """The iterates, the start among them, of a search that goes on whatever happens."""
    value = torch.zeros_like(cell.offset)
    state, values = solver.begin(value), [value]
    for _ in range(num_steps):
        evaluated = cell(value)
        residual = absolute_residual(value, evaluated)
        value, state = solver.step(state, value, evaluated, residual)
        values.append(value.clone())
    return values


def assert_same(solution: Solution, other: Solution, row: int | slice = slice(None)) -> None:
    """Hold everything in a solution against some rows of another's, to the bit."""
    for name, tensor in vars(solution).items():
        rows = getattr(other, name)[row].view_as(tensor)
        torch.testing.assert_close(tensor, rows, rtol=0, atol=0, equal_nan=True, msg=name)


# What all of them promise.


@every_solver
@pytest.mark.parametrize("make", [affine_cell, tanh_cell])
def test_every_solver_finds_the_fixed_point(make, solver: Solver) -> None:
    cell = make([0.1, 0.8, 0.6])
    solution = find_fixed_point(cell, torch.zeros_like(cell.offset), solver, TIGHT)
    assert (solution.result == Result.CONVERGED).all()
    torch.testing.assert_close(cell(solution.value), solution.value, rtol=1e-9, atol=1e-10)
    if isinstance(cell, AffineCell):
        torch.testing.assert_close(solution.value, cell.fixed_point(), rtol=1e-9, atol=1e-9)


@every_solver
def test_what_has_ended_costs_nothing(solver: Solver) -> None:
    cell = affine_cell([0.01, 0.8, 0.6, 1e60], width=8)
    cell.evaluated = []
    solution = find_fixed_point(cell, torch.zeros_like(cell.offset), solver, TIGHT)
    assert solution.result[:3, 0].tolist() == [Result.CONVERGED] * 3
    assert len(set(solution.steps[:3, 0].tolist())) > 1
    assert sum(cell.evaluated) == solution.steps.sum()
    assert torch.equal(solution.token_evaluations, solution.steps[:, 0] * 3)


@every_solver
@pytest.mark.parametrize("mates", [[], [0.01, 0.02], [0.85, 0.9], [1e60, 0.3, 1e200]])
def test_batch_mates_change_nothing_to_the_bit(mates: list[float], solver: Solver) -> None:
    one, rest = affine_cell([0.7]), affine_cell([0.5, *mates])
    alone = find_fixed_point(one, torch.zeros_like(one.offset), solver, TIGHT)
    row = min(1, len(mates))
    matrix, offset = rest.matrix[1:].clone(), rest.offset[1:].clone()
    cell = AffineCell(
        torch.cat((matrix[:row], one.matrix, matrix[row:])),
        torch.cat((offset[:row], one.offset, offset[row:])),
    )
    together = find_fixed_point(cell, torch.zeros_like(cell.offset), solver, TIGHT)
    assert_same(alone, together, row)


@every_solver
def test_solving_twice_is_the_same_to_the_bit(solver: Solver) -> None:
    cell = affine_cell([0.1, 0.8, 1e60])
    start = cell.offset.clone()
    first, second = (find_fixed_point(cell, start, solver, TIGHT) for _ in "ab")
    assert_same(first, second)
    assert torch.equal(start, cell.offset)


@every_solver
def test_padding_changes_nothing(solver: Solver) -> None:
    cell = causal_cell(3)
    lengths = torch.tensor([4, 0, 7])
    cell.offset[0, 4:] = torch.nan
    cell.contraction[1] = 3.0
    start = torch.zeros_like(cell.offset)
    padded = find_fixed_point(cell, start, solver, TIGHT, lengths=lengths)
    assert (padded.result == Result.CONVERGED).all()
    assert padded.value.isfinite().all()
    for row, length in ((0, 4), (2, 7)):
        alone = causal_cell(3).select(torch.tensor([row]))
        alone.contraction, alone.offset = alone.contraction[:, :length], alone.offset[:, :length]
        solution = find_fixed_point(alone, start[:1, :length], solver, TIGHT)
        assert solution.steps[0] == padded.steps[row]
        torch.testing.assert_close(
            solution.value[0], padded.value[row, :length], rtol=1e-9, atol=1e-10
        )


@every_solver
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (1, 1, 4)])
@pytest.mark.parametrize("stopping", [TIGHT, FixedSteps(0), FixedSteps(40)])
def test_small_shapes(stopping, shape: tuple[int, int, int], solver: Solver) -> None:
    offset = torch.ones(shape, dtype=torch.float64)
    cell = AffineCell(torch.eye(4, dtype=torch.float64) * 0.2, offset)
    solution = find_fixed_point(cell, torch.zeros_like(offset), solver, stopping)
    expected = cell.fixed_point() if stopping.max_steps else torch.zeros_like(offset)
    torch.testing.assert_close(solution.value, expected)


@every_solver
@pytest.mark.parametrize("kind", ["constant", "identity", "exact start", "rank one"])
def test_singular_systems_stay_finite(kind: str, solver: Solver) -> None:
    cell = affine_cell([0.5, 0.5])
    if kind == "constant":
        cell = AffineCell(torch.zeros(4, 4, dtype=torch.float64), cell.offset)
    elif kind == "identity":  # every residual is the same, and there is no fixed point
        cell = AffineCell(torch.eye(4, dtype=torch.float64), cell.offset)
    elif kind == "rank one":
        cell = AffineCell(torch.full((4, 4), 0.1, dtype=torch.float64), cell.offset)
    start = cell.fixed_point() if kind == "exact start" else torch.zeros_like(cell.offset)
    solution = find_fixed_point(cell, start, solver, FixedSteps(60))
    assert (solution.result == Result.OUT_OF_STEPS).all()
    assert solution.value.isfinite().all()
    if kind != "identity":
        torch.testing.assert_close(solution.value, cell.fixed_point(), rtol=1e-7, atol=1e-7)


@every_solver
def test_memory_does_not_grow_with_the_iterations(solver: Solver) -> None:
    cell = tanh_cell([0.9, 0.95])
    value = torch.zeros_like(cell.offset)
    state, sizes = solver.begin(value), set()

    def size(state: Any) -> int:
        parts = state if isinstance(state, tuple) else vars(state).values()
        kinds = (torch.Tensor, tuple)
        return sum(
            part.untyped_storage().nbytes() if isinstance(part, torch.Tensor) else size(part)
            for part in parts
            if isinstance(part, kinds) or dataclasses.is_dataclass(part)
        )

    for _ in range(40):
        evaluated = cell(value)
        value, state = solver.step(state, value, evaluated, absolute_residual(value, evaluated))
        sizes.add(size(state))
    assert len(sizes) == 1
    history = getattr(getattr(solver, "solver", solver), "history", 0)
    assert sizes.pop() <= 8 * (value.numel() * (2 * history + 2) + 2 * (history**2 + 1))


# Anderson.


def anderson_reference(cell: TanhCell, solver: Anderson, num_steps: int) -> list[torch.Tensor]:
    """Bordered normal equations of the constrained least squares, for a batch of one."""
    value, values, history = torch.zeros_like(cell.offset), [], []
    values.append(value)
    for _ in range(num_steps):
        residual = (cell(value) - value).flatten()
        history = [*history, (value.flatten(), residual)][-solver.history :]
        iterates, residuals = (torch.stack(kind) for kind in zip(*history, strict=True))
        count = len(history)
        weight = solver.regularisation * residuals.square().sum(1).max()
        system = torch.ones(count + 1, count + 1, dtype=torch.float64)
        system[:count, :count] = residuals @ residuals.T + weight * torch.eye(count).double()
        system[count, count] = 0.0
        right = torch.zeros(count + 1, dtype=torch.float64)
        right[count] = 1.0
        alpha = torch.linalg.solve(system, right)[:count]
        value = (alpha @ (iterates + solver.damping * residuals)).view_as(value)
        values.append(value)
    return values


@pytest.mark.parametrize("damping", [0.6, 1.0])
@pytest.mark.parametrize("history", [1, 2, 4])
def test_anderson_is_its_reference(history: int, damping: float) -> None:
    cell, solver = tanh_cell([0.9]), Anderson(history, damping, regularisation=1e-3)
    expected = anderson_reference(cell, solver, 12)
    torch.testing.assert_close(iterates(solver, cell, 12), expected, rtol=1e-9, atol=1e-10)


def test_anderson_on_an_affine_cell_is_gmres() -> None:
    cell = affine_cell([0.9], length=1, width=6)
    matrix, right = torch.eye(6).double() - cell.matrix[0].T, cell.offset[0, 0]
    values = iterates(Anderson(7, regularisation=1e-14), cell, 7)
    krylov = [right]
    for count in range(1, 7):
        basis = torch.linalg.qr(torch.stack(krylov, 1))[0]
        best = basis @ torch.linalg.lstsq(matrix @ basis, right[:, None]).solution[:, 0]
        # Anderson's next iterate is one plain step from GMRES's (Walker & Ni 2011, theorem 2.2).
        after = cell(best[None, None])[0, 0]
        torch.testing.assert_close(values[count + 1][0, 0], after, rtol=1e-5, atol=1e-5)
        krylov.append(matrix @ krylov[-1])
    torch.testing.assert_close(values[7], cell.fixed_point(), rtol=1e-6, atol=1e-6)
    assert (iterates(Picard(), cell, 7)[7] - cell.fixed_point()).norm() > 0.3 * right.norm()


# Broyden.


def broyden_reference(cell: TanhCell, solver: Broyden, num_steps: int) -> list[torch.Tensor]:
    """The dense inverse Jacobian of ``f(z) - z``, updated by the textbook's formula."""
    value = torch.zeros_like(cell.offset)
    start = -solver.damping * torch.eye(value.numel(), dtype=torch.float64)
    inverse, values, before, num_updates = start, [value], None, 0
    for _ in range(num_steps):
        residual = (cell(value) - value).flatten()
        if before is not None and num_updates == solver.history:
            inverse, num_updates = start, 0
        elif before is not None:
            step, change = (value.flatten() - before[0]), residual - before[1]
            reached = inverse @ change
            update = torch.outer(step - reached, step @ inverse) / (step @ reached)
            inverse, num_updates = inverse + update, num_updates + 1
        before = value.flatten(), residual
        value = value - (inverse @ residual).view_as(value)
        values.append(value)
    return values


@pytest.mark.parametrize("damping", [0.6, 1.0])
@pytest.mark.parametrize("history", [1, 3, 20])
def test_broyden_is_its_reference_through_restarts(history: int, damping: float) -> None:
    cell, solver = tanh_cell([0.9]), Broyden(history, damping)
    expected = broyden_reference(cell, solver, 12)
    torch.testing.assert_close(iterates(solver, cell, 12), expected, rtol=1e-7, atol=1e-8)


def test_broyden_recovers_from_a_step_that_overflowed() -> None:
    solver, value = Broyden(5), torch.zeros(1, 1, 2, dtype=torch.float64)
    state, residual = solver.begin(value), value[..., 0]
    value, state = solver.step(state, value, torch.tensor([[[1.0, 0.0]]]).double(), residual)
    # The last step was (1, 0); the residual now all but annuls the update's denominator.
    evaluated = torch.tensor([[[2.0 + 1e-6, 1e306]]], dtype=torch.float64)
    value, state = solver.step(state, value, evaluated, residual)
    torch.testing.assert_close(value, evaluated)
    cell = affine_cell([0.9], length=1, width=2)
    value = torch.zeros_like(cell.offset)
    for _ in range(12):
        value, state = solver.step(state, value, cell(value), residual)
    torch.testing.assert_close(value, cell.fixed_point(), rtol=1e-6, atol=1e-6)


# The best so far.


@pytest.mark.parametrize(
    ("script", "result", "best"),
    [
        ([1, 0.5, 0.2, 3, 0.3, 9, 9, 9], Result.OUT_OF_STEPS, 3),
        ([1, 0.5, 0.2, 3, 0.1, 9, 9, 9], Result.OUT_OF_STEPS, 5),
        ([1, 0.5, 3, float("nan"), 1, 1], Result.NON_FINITE, 2),
        ([1, 0.5, 3, 1, 0.01, 1], Result.CONVERGED, 5),
    ],
)
def test_the_iterate_after_the_smallest_residual_is_returned(
    script: list[float], result: Result, best: int
) -> None:
    cell = ScriptedCell.of(torch.tensor([[script]]))
    stopping = ResidualBelow(0.02, 7, absolute_residual)
    solution = find_fixed_point(cell, cell.start, BestSoFar(Picard()), stopping)
    assert solution.result[:, 0].tolist() == [result]
    torch.testing.assert_close(solution.value.item(), sum(script[:best]))
    torch.testing.assert_close(solution.residual.item(), script[best - 1])


@pytest.mark.parametrize("solver", [Picard(), Anderson(), Broyden()])
def test_the_best_of_a_search_that_explodes_is_finite(solver: Solver) -> None:
    cell = affine_cell([0.5, 1e60])
    solution = find_fixed_point(cell, cell.offset, BestSoFar(solver), FixedSteps(40))
    assert solution.result[:, 0].tolist() == [Result.OUT_OF_STEPS, Result.NON_FINITE]
    assert solution.value.isfinite().all()


# Bad input.


@dataclasses.dataclass
class SineCell:
    """``f(z) = sin(z) / 2 + offset``, which autocast leaves alone."""

    offset: torch.Tensor  # (B, L, D)

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value.sin() / 2 + self.offset

    def select(self, rows: torch.Tensor) -> "SineCell":
        return SineCell(self.offset[rows])


@every_solver
def test_autocast_rounds_no_step(solver: Solver) -> None:
    cell = SineCell(affine_cell([0.5, 0.9]).offset.float())
    start, stopping = torch.zeros_like(cell.offset), ResidualBelow(1e-6, 100)
    expected = find_fixed_point(cell, start, solver, stopping)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = find_fixed_point(cell, start, solver, stopping)
    assert torch.equal(found.value, expected.value)
    assert torch.equal(found.steps, expected.steps)


@pytest.mark.parametrize("damping", [0.0, 2.0, -1.0, float("nan")])
@pytest.mark.parametrize("solver", [Picard, Anderson, Broyden])
def test_impossible_dampings_are_named(solver: type[Picard], damping: float) -> None:
    with pytest.raises(ValueError, match=f"damping is {damping}; it must lie between 0 and 2"):
        solver(damping=damping)


@pytest.mark.parametrize("solver", [Anderson, Broyden])
def test_an_impossible_history_is_named(solver: type[Anderson]) -> None:
    with pytest.raises(ValueError, match="history is 0; it must be 1 or more"):
        solver(history=0)


@pytest.mark.parametrize("regularisation", [0.0, -1e-8, float("nan")])
def test_an_impossible_regularisation_is_named(regularisation: float) -> None:
    with pytest.raises(ValueError, match=f"regularisation is {regularisation}; it must be pos"):
        Anderson(regularisation=regularisation)
