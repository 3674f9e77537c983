"""A search that slides a window over the tokens: from token by token to all of them together.

The fixed point of a causal cell at a token depends on no later token. So a prefix that has
converged can be frozen: its carry is all that the rest needs. Only the tokens in the window are
computed; as its first tokens converge they are committed into the carry and as many new ones
enter on the right. The work then grows with the number of tokens, not with its square, while the
number of iterations that must follow one another stays about that of the simultaneous mode.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.cells import (
    Carry,
    CausalCell,
    Piece,
    SteppingCell,
    Trail,
    evaluate_checked,
)
from implicit_models.equilibrium.checks import check_count
from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.equilibrium.solvers import SolverState
from implicit_models.equilibrium.stopping import ResidualBelow


@dataclass(frozen=True)
class Window:
    """How many tokens are searched together, and when one of them is committed.

    Attributes
    ----------
    width
        Tokens in the window. 1 is the sequential mode.
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
        cell: CausalCell,
        stopping: ResidualBelow,
        start: Float[Tensor, "B L D"],
        window: Window,
        lengths: Int[Tensor, " B"] | None,
        goes_on: bool,
        look_every: int,
    ) -> None:
        batch, length, width = start.shape
        self._cell, self._window, self._stopping = cell, window, stopping
        self._goes_on, self._look_every = goes_on, look_every
        self._max_steps = stopping.max_steps
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
        self._piece: Piece
        self.value = start[: len(self._rows), : self._width]
        if len(self._rows):
            self._look(None)

    def has_ended(self, step: int) -> bool:
        """Return whether no sequence is left."""
        return not len(self._rows)

    def evaluate(self) -> Float[Tensor, "R W D"]:
        """Evaluate the windows at ``value``; what hangs over the end of a sequence rests."""
        evaluated = evaluate_checked(self._evaluate_piece, self.value)
        if self._beyond is None:
            return evaluated
        return torch.where(self._beyond[..., None], self.value, evaluated)

    def iterate(self, damping: float) -> tuple[Float[Tensor, "R W D"], Float[Tensor, "R W"]]:
        """Let the cell take a damped step from ``value``; give that, and the residuals."""
        assert isinstance(self._piece, SteppingCell)
        self._trail = None  # before the next one is made: they would both need memory
        following, residual, self._trail = self._piece.iterate(self.value, damping, True)
        if self._beyond is None:
            return following, residual
        following = torch.where(self._beyond[..., None], self.value, following)
        return following, residual.masked_fill(self._beyond, 0)

    def show(self, residual: Float[Tensor, "R W"], observed: Float[Tensor, "B L"]) -> None:
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
        """Commit what has converged and slide; give the rows that stay where some have ended."""
        below = self._stopping.converged(residual)
        self._below = (self._below + 1) * below
        self._waited = self._waited + 1
        self._longest_wait += 1
        self._exploded = self._exploded | ~residual.isfinite().all(1)
        all_look = step % self._look_every == 0
        if not all_look and self._longest_wait < self._max_steps:
            self.value = self._unless_exploded(following)
            return None
        looks = self._exploded.new_ones(()) if all_look else self._waited >= self._max_steps
        settled = (self._below >= self._window.patience).cumprod(1).sum(1)
        if not self._goes_on:
            at_the_end = below.all(1) & (self._remaining <= self._width)
            settled = torch.where(at_the_end, self._remaining, settled)
        given_up = (settled == 0) & (self._waited >= self._max_steps)
        exploded = self._exploded & looks
        count = torch.minimum(settled + given_up, self._remaining)
        count = count.masked_fill_(self._exploded | ~looks, 0)
        if not (count.any() or exploded.any()):
            self.value = following if all_look else self._unless_exploded(following)
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
        self._look(carry if left is None else carry.select(left))
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

    def _evaluate_piece(self, value: Tensor) -> Tensor:
        self._trail = None  # before the next one is made: they would both need memory
        evaluated, self._trail = self._piece.evaluate(value)
        return evaluated

    def _unless_exploded(self, following: Tensor) -> Tensor:
        """Return the next iterate, or the last finite one of a sequence that has exploded."""
        return torch.where(self._exploded[:, None, None], self.value, following)

    def _positions(self) -> Int[Tensor, "R W"]:
        return self._offset[:, None] + self._tokens

    def _look(self, carry: Carry | None) -> None:
        """Take up the windows at the present offsets, after what the carry holds."""
        self._remaining = self._lengths[self._rows] - self._offset
        positions = self._positions()
        inside = positions.clamp(max=self._length - 1)
        self._piece = self._cell.window(self._rows, inside, carry)
        beyond = positions >= self._lengths[self._rows, None]
        self._beyond = beyond if beyond.any() else None
        self._flat = self._rows[:, None] * self._stride + positions
        value = self._values.index_select(0, self._flat.flatten())
        self.value = value.view(*self._flat.shape, -1)

    def _slid(self, counts: Int[Tensor, "R W"], by: Int[Tensor, " R"]) -> Int[Tensor, "R W"]:
        """Move each row to the left and fill up with zeros."""
        padded = torch.cat((counts, torch.zeros_like(counts)), dim=1)
        return padded.gather(1, self._tokens + by[:, None])
