"""Broyden's method with a limited memory: steps with an estimate of the inverse Jacobian."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.checks import check_count, check_damping
from implicit_models.equilibrium.solvers import Solver


@dataclass
class BroydenState:
    """The estimate of each sequence: ``damping + left^T right`` times a residual is its step.

    Attributes
    ----------
    left, right
        Rank-one updates, written in place.
    step
        The last step.
    num_updates
        Rank-one updates held; -1 before the first step.
    """

    left: Float[Tensor, "B M N"]
    right: Float[Tensor, "B M N"]
    step: Float[Tensor, "B N"]
    num_updates: int = field(default=-1)

    def select(self, rows: Int[Tensor, " R"]) -> "BroydenState":
        """Return the state of some of the batch's sequences."""
        return BroydenState(self.left[rows], self.right[rows], self.step[rows], self.num_updates)


@dataclass(frozen=True)
class Broyden(Solver):
    """Solve ``f(z) - z = 0`` by Broyden's first ("good") method (Broyden 1965).

    The estimate starts from ``damping``, a Picard step, and takes one rank-one update a step.
    After ``history`` of them it starts anew (Kelley 1995, section 7.3), so that memory does not
    grow with the iterations: 2 ``history`` copies of the state. An update whose denominator
    vanishes is left out, and a step that overflows is replaced by Picard's.

    One estimate serves all tokens of a sequence.
    """

    history: int = 8
    damping: float = 1.0

    def __post_init__(self) -> None:
        check_count("history", self.history)
        check_damping(self.damping)

    def begin(self, start: Tensor) -> BroydenState:
        """Return the estimate before the first step."""
        batch, size = start.shape[0], start[:1].numel()
        return BroydenState(
            start.new_empty(batch, self.history, size),
            start.new_empty(batch, self.history, size),
            start.new_zeros(batch, size),
        )

    def step(
        self, state: BroydenState, value: Tensor, evaluated: Tensor, residual: Tensor
    ) -> tuple[Tensor, BroydenState]:
        """Return the next iterate."""
        residuals = (evaluated - value).flatten(1)
        count = state.num_updates
        if count in (-1, self.history):
            step = self.damping * residuals
            state.num_updates = 0
        else:
            # With H the estimate, s the last step and g' the residual now, H's change is known
            # from p = H g' alone: s = H g, so that H (g' - g) = p - s.
            proposed = self._apply(state.right, state.left, count, residuals)
            size = _dot(state.step, state.step)
            curvature = size - _dot(state.step, proposed)
            usable = curvature.abs() > torch.finfo(size.dtype).eps * size
            state.left[:, count] = (proposed / curvature).masked_fill_(~usable, 0.0)
            state.right[:, count] = self._apply(state.left, state.right, count, state.step)
            state.num_updates += 1
            step = proposed * torch.where(usable, size / curvature, 1.0)
            overflows = ~_dot(step, step).isfinite()
            step = torch.where(overflows, self.damping * residuals, step)
        state.step = step
        return value + step.view_as(value), state

    def _apply(self, inner: Tensor, outer: Tensor, count: int, vector: Tensor) -> Tensor:
        """Return ``damping * vector + outer^T (inner vector)``."""
        if not count:
            return self.damping * vector
        scores = vector[:, None] @ inner[:, :count].mT
        return torch.add((scores @ outer[:, :count])[:, 0], vector, alpha=self.damping)


def _dot(left: Float[Tensor, "B N"], right: Float[Tensor, "B N"]) -> Float[Tensor, "B 1"]:
    return torch.linalg.vecdot(left, right)[:, None]
