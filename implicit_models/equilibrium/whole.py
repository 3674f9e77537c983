"""A search that iterates whole sequences: the simultaneous mode."""

from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.cells import Cell, SteppingCell, evaluate_checked, steps_itself
from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.equilibrium.solvers import Solver, SolverState, worst_token
from implicit_models.equilibrium.stopping import Stopping


class WholeSequences:
    """The sequences still searched, and what became of the others.

    Attributes
    ----------
    value
        What is evaluated next: (R, L, D), the R sequences still searched.
    """

    def __init__(
        self,
        cell: Cell,
        start: Float[Tensor, "B L D"],
        solver: Solver,
        stopping: Stopping,
        lengths: Int[Tensor, " B"] | None,
        sync_every: int,
    ) -> None:
        batch, length = start.shape[:2]
        self.value, self._cell = start, cell
        self._solver, self._stopping, self._sync_every = solver, stopping, sync_every
        self._steps_itself = steps_itself(cell, stopping.measure)
        self._rows = torch.arange(batch, device=start.device)
        self._padding: Tensor | None = None
        if lengths is not None:
            tokens = torch.arange(length, device=start.device)
            self._padding = tokens >= lengths.to(start.device)[:, None]
        self._final = start.clone()
        self._steps = torch.zeros_like(self._rows)
        self._residual = start.new_full((batch,), torch.nan)
        self._result = torch.full_like(self._rows, Result.OUT_OF_STEPS, dtype=torch.uint8)
        # Of the rows still evaluated: those that have ended since the host last asked rest.
        self._resting: Tensor | None = None

    def has_ended(self, step: int) -> bool:
        """Return whether no sequence is left after so many steps."""
        return not len(self._rows) or step == self._stopping.max_steps

    def evaluate(self) -> tuple[Float[Tensor, "R L D"], Float[Tensor, "R L"]]:
        """Return the cell's value, padding at rest, so that no solver sees it move; residuals."""
        evaluated = evaluate_checked(self._cell, self.value)
        if self._padding is not None:
            evaluated = torch.where(self._padding[..., None], self.value, evaluated)
        residual = self._stopping.measure(self.value, evaluated)
        return evaluated, residual.to(evaluated.dtype)

    def damped_step(
        self, damping: float
    ) -> tuple[Float[Tensor, "R L D"], Float[Tensor, "R L"]] | None:
        """Return a damped step from ``value`` and the residuals, where the cell takes it itself."""
        if not self._steps_itself:
            return None
        following, residual, _ = cast(SteppingCell, self._cell).iterate(self.value, damping, False)
        if self._padding is None:
            return following, residual
        following = torch.where(self._padding[..., None], self.value, following)
        return following, residual.masked_fill(self._padding, 0)

    def write_residual(
        self, residual: Float[Tensor, "R L"], observed: Float[Tensor, "B L"]
    ) -> None:
        """Write residuals where the batch's are observed."""
        if self._padding is not None:
            residual = residual.masked_fill(self._padding, torch.nan)
        observed[self._rows] = residual

    def accept(
        self,
        step: int,
        following: Float[Tensor, "R L D"],
        residual: Float[Tensor, "R L"],
        state: SolverState,
    ) -> Int[Tensor, " K"] | None:
        """Take up the next iterate; return the rows that stay where some have ended."""
        worst = worst_token(residual)
        finite, converged = worst.isfinite(), self._stopping.converged(worst)
        is_last = step == self._stopping.max_steps
        ended = torch.ones_like(converged) if is_last else converged | ~finite
        syncs = is_last or step % self._sync_every == 0
        if self._resting is None and syncs and not ended.any():
            self.value = following
            return None

        ends = ended if self._resting is None else ended & ~self._resting
        answer, reached = self._solver.answer(state, following, worst)
        usable = answer.isfinite().flatten(1).all(1)
        answer = torch.where(usable[:, None, None], answer, self.value)
        outcome = torch.where(converged, Result.CONVERGED, Result.OUT_OF_STEPS)
        outcome = torch.where(finite, outcome, Result.NON_FINITE).to(self._result.dtype)
        for kept, new in ((self._steps, step), (self._residual, reached), (self._result, outcome)):
            kept[self._rows] = torch.where(ends, new, kept[self._rows])
        value = torch.where(ends[:, None, None], answer, following)
        if self._resting is not None:
            value = torch.where(self._resting[:, None, None], self.value, value)
            ended = ends | self._resting
        self.value, self._resting = value, ended
        return self._remove(ended) if syncs else None

    def _remove(self, ended: Tensor) -> Int[Tensor, " K"] | None:
        """Remove the rows that have ended from the batch; return those that stay, None for all."""
        left = (~ended).nonzero()[:, 0]
        self._resting = None
        if len(left) == len(ended):
            return None
        self._final[self._rows[ended]] = self.value[ended]
        self._rows, self.value = self._rows[left], self.value[left]
        if self._padding is not None:
            self._padding = self._padding[left]
        if len(left):
            self._cell = self._cell.select(left)
        return left

    def solution(self) -> Solution:
        """Return the outcome."""
        work = self._steps * self._final.shape[1]
        steps, residual = self._steps[:, None], self._residual[:, None]
        return Solution(self._final, steps, residual, self._result[:, None], self._steps, work)
