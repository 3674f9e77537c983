"""The one loop that searches fixed points."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import ResidualBelow, Stopping

Observer = Callable[[int, Float[Tensor, "B L"]], None]


@runtime_checkable
class Cell(Protocol):
    """The function whose fixed point is sought; whatever else it reads is frozen inside it."""

    def __call__(self, value: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Evaluate the cell."""
        ...

    def select(self, rows: Int[Tensor, " R"]) -> "Cell":
        """Give the cell of some of the batch's sequences."""
        ...


@torch.no_grad()
def find_fixed_point(
    cell: Cell,
    start: Float[Tensor, "B L D"],
    solver: Picard,
    stopping: Stopping,
    observe: Observer | None = None,
) -> Solution:
    """Iterate the cell from ``start``, without gradient, until every sequence has ended.

    Convergence is judged for each sequence, by its worst token, so what else is in the batch
    changes neither a sequence's steps nor its value (beyond the rounding of matrix products of
    another batch size). A sequence that has ended leaves the batch, and its cost ends there.

    Parameters
    ----------
    observe
        Called after each evaluation with the number of evaluations so far and the relative
        residual of every token of the batch; a sequence that has ended shows its last one.
    """
    batch = start.shape[0]
    final = start.clone()
    steps = torch.zeros(batch, dtype=torch.int64, device=start.device)
    residual = torch.full((batch,), torch.nan, dtype=start.dtype, device=start.device)
    result = torch.full((batch,), Result.OUT_OF_STEPS, dtype=torch.uint8, device=start.device)
    observed = torch.full_like(start[..., 0], torch.nan) if observe else None

    value, rows = start, torch.arange(batch, device=start.device)
    watching = observe is not None or isinstance(stopping, ResidualBelow)
    for step in range(1, stopping.max_steps + 1):
        evaluated = cell(value)
        following = solver.step(value, evaluated)
        last = step == stopping.max_steps
        if not (watching or last):
            value = following
            continue

        per_token = relative_residual(value, evaluated)
        worst = per_token.amax(1) if per_token.shape[1] else torch.zeros_like(residual[rows])
        finite, converged = worst.isfinite(), stopping.converged(worst)
        if observe is not None and observed is not None:
            observed[rows] = per_token
            observe(step, observed.clone())

        ended = converged | ~finite | last
        if ended.any():
            gone = rows[ended]
            outcome = torch.where(converged, Result.CONVERGED, Result.OUT_OF_STEPS)
            outcome = torch.where(finite, outcome, Result.NON_FINITE)
            final[gone] = torch.where(finite[:, None, None], following, value)[ended]
            steps[gone], residual[gone] = step, worst[ended]
            result[gone] = outcome[ended].to(result.dtype)
            left = (~ended).nonzero()[:, 0]
            if not left.numel():
                break
            rows, following, cell = rows[left], following[left], cell.select(left)
        value = following
    return Solution(final, steps, residual, result)


def relative_residual(
    value: Float[Tensor, "B L D"], evaluated: Float[Tensor, "B L D"]
) -> Float[Tensor, "B L"]:
    """Give ``|f(z) - z| / |f(z)|`` for each token."""
    distance = torch.linalg.vector_norm(evaluated - value, dim=-1)
    size = torch.linalg.vector_norm(evaluated, dim=-1)
    return distance / size.clamp_min(torch.finfo(size.dtype).tiny)
