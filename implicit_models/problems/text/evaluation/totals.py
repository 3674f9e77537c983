"""What reading texts took, in numbers small enough to be kept of any amount of text."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Integer

from implicit_models.evaluation import metrics
from implicit_models.evaluation.scoring import Scores


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a number of batches took.

    Attributes
    ----------
    num_tokens
        Tokens read, those included that were context alone.
    token_evaluations
        Evaluations of the cell at all of them; None for a model that seeks no fixed point, like
        the next two.
    self_iterations
        Evaluations that each scored token took part in.
    share_converged
        Share of the searches that reached the tolerance: each token's, or where whole sequences are
        searched, each sequence's.
    flops
        Of the model's products of matrices.
    seconds
        Wall time.
    """

    num_tokens: int
    token_evaluations: int | None
    self_iterations: dict[str, float | None] | None
    share_converged: float | None
    flops: float
    seconds: float

    @property
    def evaluations_per_token(self) -> float | None:
        """Work for each token read."""
        return None if self.token_evaluations is None else self.token_evaluations / self.num_tokens

    @classmethod
    def of(cls, measured: Mapping[str, np.ndarray]) -> "Totals":
        """Sum up what `totals_of` gave of all batches."""
        num_tokens = int(measured["num_read"].sum())
        flops, seconds = (float(measured[name].sum()) for name in ("flops", "seconds"))
        if "num_searches" not in measured:
            return cls(
                num_tokens=num_tokens,
                token_evaluations=None,
                self_iterations=None,
                share_converged=None,
                flops=flops,
                seconds=seconds,
            )
        searches = int(measured["num_searches"].sum())
        return cls(
            num_tokens=num_tokens,
            token_evaluations=int(measured["token_evaluations"].sum()),
            self_iterations=metrics.spread_of_counts(
                measured["self_iterations"], measured["self_iteration_counts"]
            ),
            share_converged=float(measured["num_converged"].sum() / searches),
            flops=flops,
            seconds=seconds,
        )


def totals_of(
    scores: Scores, *, num_read: int, wanted: Bool[np.ndarray, "B L"]
) -> dict[str, np.ndarray]:
    """Return a batch's share of the totals; ``wanted`` are the tokens whose iterations count."""
    found: dict[str, int | float | Integer[np.ndarray, "..."]] = {
        "num_read": num_read,
        "flops": scores.flops,
        "seconds": scores.seconds,
    }
    if scores.search is not None and scores.self_iterations is not None:
        values, counts = np.unique(scores.self_iterations[wanted], return_counts=True)
        found |= {
            "token_evaluations": scores.search.token_evaluations.sum(),
            "num_searches": len(scores.search.converged),
            "num_converged": scores.search.converged.sum(),
            "self_iterations": values,
            "self_iteration_counts": counts,
        }
    return {name: np.atleast_1d(number) for name, number in found.items()}
