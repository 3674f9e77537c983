"""What a search for a fixed point returns."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor


class Result(IntEnum):
    """How the search of a sequence, or of a token in a window, ended.

    Attributes
    ----------
    CONVERGED
        By the stopping rule.
    OUT_OF_STEPS
        With as many evaluations as there may be.
    NON_FINITE
        At a value or residual that is no number.
    """

    CONVERGED = 0
    OUT_OF_STEPS = 1
    NON_FINITE = 2


@dataclass(frozen=True)
class Solution:
    """A search's outcome.

    A sequence that is searched as a whole is one search (S = 1); in a window each of its tokens is
    one (S = L). What is said of searches, (B, S), broadcasts over the tokens, (B, L).

    Attributes
    ----------
    value
        The last iterate: (B, L, D). A sequence that became non-finite keeps its last finite one.
    steps
        Evaluations of the cell that each search took part in: (B, S); 0 for padding in a window.
    residual
        Residual of the last of them, in the stopping rule's measure: (B, S); of a whole sequence
        its worst token's. NaN where nothing was evaluated, and for tokens that were in the window
        when their sequence became non-finite.
    result
        A `Result` for each search: (B, S).
    depth
        Evaluations of the cell that follow one another, for each sequence: (B,).
    token_evaluations
        Its tokens' evaluations in all, for each sequence: (B,). This is the work. A sequence
        searched as a whole evaluates all its tokens, padding included, each time; what a window
        computes beyond the end of its sequence is not counted.
    """

    value: Float[Tensor, "B L D"]
    steps: Int[Tensor, "B S"]
    residual: Float[Tensor, "B S"]
    result: UInt8[Tensor, "B S"]
    depth: Int[Tensor, " B"]
    token_evaluations: Int[Tensor, " B"]

    def metrics(self) -> dict[str, float]:
        """Sum the search up for a log; nothing where nothing was searched.

        ``self_iterations`` is the mean depth; ``token_evaluations`` the work of all sequences;
        ``residual`` is its mean, median, 95th percentile (interpolated) and largest, over the
        searches that evaluated the cell and stayed finite; ``share_not_converged`` counts
        those that ran out of steps and those that became non-finite.
        """
        searched = (self.steps > 0) | (self.result == Result.NON_FINITE)
        if not self.depth.any():
            return {}
        metrics = {
            "self_iterations": self.depth.double().mean().item(),
            "token_evaluations": float(self.token_evaluations.sum().item()),
            "share_not_converged": (self.result != Result.CONVERGED)[searched]
            .double()
            .mean()
            .item(),
        }
        residual = self.residual[searched].double()
        residual = residual[residual.isfinite()]
        if residual.numel():
            ordered = residual.sort().values
            middle, high, largest = (_quantile(ordered, q) for q in (0.5, 0.95, 1.0))
            metrics |= {
                "residual": residual.mean().item(),
                "residual_p50": middle,
                "residual_p95": high,
                "residual_max": largest,
            }
        return metrics

    def reordered(self, order: Int[Tensor, "B L"]) -> "Solution":
        """Return the outcome with each sequence's tokens in another order."""
        rows = torch.arange(len(order), device=order.device)[:, None]
        # The one search of a whole sequence stays where it is.
        num_searches = self.steps.shape[1]
        places = order[:, :num_searches].clamp(max=num_searches - 1)
        return dataclasses.replace(
            self,
            value=self.value[rows, order],
            steps=self.steps[rows, places],
            residual=self.residual[rows, places],
            result=self.result[rows, places],
        )

    def without_value(self) -> "Solution":
        """Return the outcome without its value, which gets no width and takes no memory."""
        return dataclasses.replace(self, value=self.value.new_empty(*self.value.shape[:-1], 0))

    def to(self, device: torch.device) -> "Solution":
        """Return the outcome on a device."""
        return _over_fields(lambda name: getattr(self, name).to(device))


def joined(solutions: Sequence[Solution]) -> Solution:
    """Put the searches of several batches together as that of one."""
    return _over_fields(lambda name: torch.cat([getattr(solution, name) for solution in solutions]))


def _over_fields(make: Callable[[str], Tensor]) -> Solution:
    return Solution(**{field.name: make(field.name) for field in dataclasses.fields(Solution)})


def _quantile(ordered: Float[Tensor, " N"], q: float) -> float:
    """Interpolate linearly, as torch's ``quantile``, which takes 16 million numbers at most."""
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low].lerp(ordered[high], position - low).item()
