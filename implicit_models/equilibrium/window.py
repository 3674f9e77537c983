"""A search that slides a window over the tokens: from token by token to all of them together.

The fixed point of a causal cell at a token depends on no later token. So a prefix that has
converged can be frozen: its carry is all that the rest needs. Only the tokens in the window are
computed; as its first tokens converge they are committed into the carry and as many new ones
enter on the right. The work then grows with the number of tokens, not with its square, while the
number of iterations that must follow one another stays about that of the simultaneous mode (a
narrow window's is up to twice that).
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.cells import (
    Carry,
    CausalCell,
    Cell,
    SteppingCell,
    Trail,
    WindowedCell,
    evaluate_checked,
    steps_itself,
)
from implicit_models.equilibrium.checks import check_count
from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.equilibrium.solvers import Solver, SolverState
from implicit_models.equilibrium.stopping import Stopping


@dataclass(frozen=True)
class Window:
    """How many tokens are searched together, and when one of them is committed.

    Attributes
    ----------
    width
        Tokens in the window. 1 is the sequential mode. Where states are to be kept, less than the
        patience: docs/equilibrium.md says why.
    patience
        Evaluations in a row whose residual must be below the tolerance before a token counts as
        converged. Where the cell contracts slowly, the first of them comes too early, and the
        error would travel to all later tokens. At a text's end there are none: once the window
        holds all that is left, it ends, like a whole sequence, when all of it is below.
    """

    width: int
    patience: int = 12

    def __post_init__(self) -> None:
        check_count("width", self.width)
        check_count("patience", self.patience)

    def check(self, solver: Solver, stopping: Stopping) -> None:
        """Raise a ValueError where a search with this solver and rule can have no such window."""
        if not solver.is_tokenwise:
            raise ValueError(
                f"the solver {solver} combines all tokens of a sequence, but those in a window "
                "change; a window takes a solver that steps token by token, as Picard does"
            )
        if not stopping.can_converge:
            raise ValueError(
                "a window commits tokens as they converge; its stopping rule must be one under "
                f"which they can, as under ResidualBelow, not {stopping}"
            )
        if self.patience > stopping.max_steps:
            raise ValueError(
                f"patience is {self.patience}; it must be at most max_steps, {stopping.max_steps}, "
                "or no token could converge"
            )


class SlidingWindow:
    """The windows of the sequences still searched, and what became of the tokens behind them.

    Buffers over all tokens have a margin of one window on the right, so that a window may hang
    over the end.

    Attributes
    ----------
    value
        What is evaluated next: (R, W, D), the windows of the R sequences still searched.
    """

    def __init__(
        self,
        cell: Cell,
        start: Float[Tensor, "B L D"],
        solver: Solver,
        stopping: Stopping,
        window: Window,
        lengths: Int[Tensor, " B"] | None,
        is_prefix: bool,
        sync_every: int,
    ) -> None:
        if not isinstance(cell, CausalCell):
            raise ValueError(
                f"a window needs a CausalCell; {type(cell).__name__} has no method `window`"
            )
        window.check(solver, stopping)
        batch, length, width = start.shape
        self._cell, self._window, self._stopping = cell, window, stopping
        self._is_prefix, self._sync_every = is_prefix, sync_every
        self._max_steps = stopping.max_steps
        self._steps_itself = steps_itself(cell, stopping.measure)
        self._length, self._width = length, min(window.width, length)
        self._stride = length + self._width
        whole = torch.full((batch,), length, dtype=torch.int64, device=start.device)
        self._lengths = whole if lengths is None else lengths.to(whole)

        margin = start.new_zeros(batch, self._width, width)
        self._values = torch.cat((start, margin), dim=1).view(-1, width)
        self._residual = start.new_full((batch * self._stride,), torch.nan)
        self._committed_at = torch.zeros_like(self._residual, dtype=torch.int64)
        self._result = torch.full_like(self._committed_at, Result.NON_FINITE, dtype=torch.uint8)
        self._depth = torch.zeros_like(whole)

        self._tokens = torch.arange(self._width, device=start.device)

        # Of the sequences still searched, a row each.
        self._rows = (self._lengths > 0).nonzero()[:, 0]
        self._offset = torch.zeros_like(self._rows)
        self._waited = torch.zeros_like(self._rows)
        self._longest_wait = 0  # at least as long as any row's, known without asking the device
        self._exploded = torch.zeros_like(self._rows, dtype=torch.bool)
        self._below = torch.zeros_like(self._rows)[:, None].expand(-1, self._width)
        self._trail: Trail | None = None
        self._windowed: WindowedCell
        self.value = start[: len(self._rows), : self._width]
        if len(self._rows):
            self._move_windows(None)

    def has_ended(self, step: int) -> bool:
        """Return whether no sequence is left."""
        return not len(self._rows)

    def evaluate(self) -> tuple[Float[Tensor, "R W D"], Float[Tensor, "R W"]]:
        """Return the windows' values, what hangs over a sequence's end at rest, and residuals."""
        evaluated = evaluate_checked(self._evaluate_windows, self.value)
        if self._beyond is not None:
            evaluated = torch.where(self._beyond[..., None], self.value, evaluated)
        residual = self._stopping.measure(self.value, evaluated)
        return evaluated, residual.to(evaluated.dtype)

    def damped_step(
        self, damping: float
    ) -> tuple[Float[Tensor, "R W D"], Float[Tensor, "R W"]] | None:
        """Return a damped step from ``value`` and the residuals, where the cell takes it itself."""
        if not self._steps_itself:
            return None
        self._trail = None  # before the next one is made: they would both need memory
        following, residual, self._trail = cast(SteppingCell, self._windowed).iterate(
            self.value, damping, True
        )
        if self._beyond is None:
            return following, residual
        following = torch.where(self._beyond[..., None], self.value, following)
        return following, residual.masked_fill(self._beyond, 0)

    def write_residual(
        self, residual: Float[Tensor, "R W"], observed: Float[Tensor, "B L"]
    ) -> None:
        """Write residuals where the batch's are observed."""
        positions = self._positions()
        inside = positions < self._lengths[self._rows, None]
        rows = self._rows[:, None].expand_as(positions)
        observed[rows[inside], positions[inside]] = residual[inside]

    def accept(
        self,
        step: int,
        following: Float[Tensor, "R W D"],
        residual: Float[Tensor, "R W"],
        state: SolverState,
    ) -> Int[Tensor, " K"] | None:
        """Commit what has converged and slide; return the rows that stay where some have ended."""
        below = self._stopping.converged(residual)
        self._below = (self._below + 1) * below
        self._waited = self._waited + 1
        self._longest_wait += 1
        self._exploded = self._exploded | ~residual.isfinite().all(1)
        all_sync = step % self._sync_every == 0
        if not all_sync and self._longest_wait < self._max_steps:
            self.value = self._unless_exploded(following)
            return None
        syncs = self._exploded.new_ones(()) if all_sync else self._waited >= self._max_steps
        settled = (self._below >= self._window.patience).cumprod(1).sum(1)
        if not self._is_prefix:
            at_the_end = below.all(1) & (self._remaining <= self._width)
            settled = torch.where(at_the_end, self._remaining, settled)
        given_up = (settled == 0) & (self._waited >= self._max_steps)
        exploded = self._exploded & syncs
        count = torch.minimum(settled + given_up, self._remaining)
        count = count.masked_fill_(self._exploded | ~syncs, 0)
        if not (count.any() or exploded.any()):
            self.value = following if all_sync else self._unless_exploded(following)
            return None

        # A sequence that explodes keeps the iterate before.
        self._values[self._flat] = self._unless_exploded(following)
        row, token = (self._tokens < count[:, None]).nonzero(as_tuple=True)
        committed = self._flat[row, token]
        self._residual[committed] = residual[row, token]
        self._committed_at[committed] = step
        outcome = torch.where(given_up, Result.OUT_OF_STEPS, Result.CONVERGED).to(torch.uint8)
        self._result[committed] = outcome[row]

        ended = exploded | (count == self._remaining)
        self._offset = self._offset + count
        self._waited = self._waited.masked_fill_(count > 0, 0)
        self._longest_wait = int(self._waited.max())
        self._below = self._slid(self._below, count)
        left = None
        if ended.any():
            gone = self._rows[ended]
            self._depth[gone] = step
            left = (~ended).nonzero()[:, 0]
            self._rows, self._offset = self._rows[left], self._offset[left]
            self._waited, self._below = self._waited[left], self._below[left]
            self._exploded = self._exploded[left]
            if not len(left):
                return left
        assert self._trail is not None
        carry, self._trail = self._trail.carry(count), None
        self._move_windows(carry if left is None else carry.select(left))
        return left

    def solution(self) -> Solution:
        """Return the outcome, token by token."""
        batch, stride = len(self._lengths), self._stride
        committed_at = self._committed_at.view(batch, stride)[:, : self._length]
        result = self._result.view(batch, stride)[:, : self._length].clone()
        padding = torch.arange(self._length, device=result.device) >= self._lengths[:, None]
        result[padding] = Result.CONVERGED
        last_seen = torch.where(committed_at > 0, committed_at, self._depth[:, None])
        # A token enters when the one that is a window's width before it leaves.
        entered = torch.zeros_like(last_seen)
        entered[:, self._width :] = last_seen[:, : self._length - self._width]
        steps = (last_seen - entered).masked_fill_(padding, 0)
        residual = self._residual.view(batch, stride)[:, : self._length].clone()
        width = self._values.shape[1]
        values = self._values.view(batch, stride, width)[:, : self._length].clone()
        return Solution(values, steps, residual, result, self._depth, steps.sum(1))

    def _evaluate_windows(self, value: Tensor) -> Tensor:
        self._trail = None  # before the next one is made: they would both need memory
        evaluated, self._trail = self._windowed.evaluate(value)
        return evaluated

    def _unless_exploded(self, following: Tensor) -> Tensor:
        """Return the next iterate, or the last finite one of a sequence that has exploded."""
        return torch.where(self._exploded[:, None, None], self.value, following)

    def _positions(self) -> Int[Tensor, "R W"]:
        return self._offset[:, None] + self._tokens

    def _move_windows(self, carry: Carry | None) -> None:
        """Move the windows to the present offsets, behind what the carry holds."""
        self._remaining = self._lengths[self._rows] - self._offset
        positions = self._positions()
        inside = positions.clamp(max=self._length - 1)
        self._windowed = self._cell.window(self._rows, inside, carry)
        beyond = positions >= self._lengths[self._rows, None]
        self._beyond = beyond if beyond.any() else None
        self._flat = self._rows[:, None] * self._stride + positions
        value = self._values.index_select(0, self._flat.flatten())
        self.value = value.view(*self._flat.shape, -1)

    def _slid(self, counts: Int[Tensor, "R W"], by: Int[Tensor, " R"]) -> Int[Tensor, "R W"]:
        """Move each row to the left and fill up with zeros."""
        padded = torch.cat((counts, torch.zeros_like(counts)), dim=1)
        return padded.gather(1, self._tokens + by[:, None])
