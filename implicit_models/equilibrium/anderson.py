"""Anderson acceleration: the next iterate from a least-squares combination of the last few."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.checks import check_count, check_damping, check_positive
from implicit_models.equilibrium.solvers import Solver


@dataclass
class AndersonState:
    """The last steps of each sequence, M at most, in a ring that is written in place.

    Attributes
    ----------
    steps
        Where plain damped iteration would have gone.
    residuals
        ``f(z) - z``.
    products
        Inner products of the residuals.
    num_seen
        Steps seen so far, by all sequences.
    """

    steps: Float[Tensor, "B M N"]
    residuals: Float[Tensor, "B M N"]
    products: Float[Tensor, "B M M"]
    num_seen: int = field(default=0)

    def select(self, rows: Int[Tensor, " R"]) -> "AndersonState":
        """Return the state of some of the batch's sequences."""
        return AndersonState(
            self.steps[rows], self.residuals[rows], self.products[rows], self.num_seen
        )


@dataclass(frozen=True)
class Anderson(Solver):
    """Combine the last ``history`` steps so that their residuals cancel best (Walker & Ni 2011).

    The weights of a sequence's steps sum to 1 and minimise the norm of the combined residual plus
    ``regularisation`` times the largest of the residuals' squared norms times their own. Where
    that system cannot be solved, the sequence makes a plain damped step.

    One set of weights serves all tokens of a sequence. The history takes 2 ``history`` copies of
    the state.
    """

    history: int = 5
    damping: float = 1.0
    regularisation: float = 1e-8

    def __post_init__(self) -> None:
        check_count("history", self.history)
        check_damping(self.damping)
        check_positive("regularisation", self.regularisation)

    def begin(self, start: Tensor) -> AndersonState:
        """Return an empty history."""
        batch, size = start.shape[0], start[:1].numel()
        exact = torch.promote_types(start.dtype, torch.float32)
        return AndersonState(
            start.new_empty(batch, self.history, size),
            start.new_empty(batch, self.history, size),
            start.new_zeros(batch, self.history, self.history, dtype=exact),
        )

    def step(
        self, state: AndersonState, value: Tensor, evaluated: Tensor, residual: Tensor
    ) -> tuple[Tensor, AndersonState]:
        """Return the next iterate."""
        slot = state.num_seen % self.history
        count = min(state.num_seen + 1, self.history)
        newest, plain = state.residuals[:, slot], state.steps[:, slot]
        torch.sub(evaluated.flatten(1), value.flatten(1), out=newest)
        torch.add(value.flatten(1), newest, alpha=self.damping, out=plain)
        state.num_seen += 1
        products = (newest[:, None] @ state.residuals[:, :count].mT)[:, 0]
        products = products.to(state.products.dtype)
        state.products[:, slot, :count] = products
        state.products[:, :count, slot] = products
        weights = self._weights(state.products[:, :count, :count], slot).to(value.dtype)
        return (weights[:, None] @ state.steps[:, :count]).view_as(value), state

    def _weights(self, products: Tensor, slot: int) -> Tensor:
        """Solve for the weights; those of a plain step where that fails."""
        size = products.diagonal(dim1=-2, dim2=-1)
        scale = size.amax(-1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
        system = products / scale[..., None]
        system.diagonal(dim1=-2, dim2=-1).add_(self.regularisation)
        factor, failed = torch.linalg.cholesky_ex(system)
        weights = torch.cholesky_solve(torch.ones_like(size)[..., None], factor)[..., 0]
        weights = weights / weights.sum(-1, keepdim=True)
        plain = torch.zeros_like(weights)
        plain[:, slot] = 1.0
        usable = (failed == 0) & weights.isfinite().all(-1)
        return torch.where(usable[:, None], weights, plain)
