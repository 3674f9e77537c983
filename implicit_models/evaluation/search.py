"""What the searches of a reading cost, summed over its pieces and joined over its batches."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Integer

from implicit_models.equilibrium.solution import Result, Solution


@dataclass(frozen=True, kw_only=True)
class Search:
    """What the searches cost each sequence, and how each search ended.

    With a window every token has a search (S tokens in all), without one every sequence, or every
    piece of one where it was read in pieces.

    Attributes
    ----------
    num_tokens
        Tokens of each sequence.
    self_iterations
        Evaluations of the cell that follow one another, those that give the output included.
    token_evaluations
        Its tokens' evaluations in all, those that give the output included: the work.
    residual
        Relative residual of each search's last evaluation, of its worst token; NaN where it made
        none.
    converged
        Whether the tolerance was reached.
    """

    num_tokens: Int[np.ndarray, " N"]
    self_iterations: Int[np.ndarray, " N"]
    token_evaluations: Int[np.ndarray, " N"]
    residual: Float[np.ndarray, " S"]
    converged: Bool[np.ndarray, " S"]

    @classmethod
    def of(cls, solution: Solution, num_tokens: Integer[np.ndarray, " N"]) -> "Search":
        """Read a search's outcome; each sequence's tokens come first in its row."""
        there = num_tokens > 0
        depth, work, result = (
            getattr(solution, name).cpu().numpy()
            for name in ("depth", "token_evaluations", "result")
        )
        residual = solution.residual.double().cpu().numpy()  # there is no bfloat16 in NumPy
        inside = np.arange(result.shape[1]) < num_tokens[:, None]
        # One evaluation of every token comes on top of the search: the one that gives the output.
        return cls(
            num_tokens=num_tokens.astype(np.int64),
            self_iterations=(depth + 1) * there,
            token_evaluations=work * there + num_tokens,
            residual=residual[inside],
            converged=result[inside] == Result.CONVERGED,
        )

    @property
    def evaluations_per_token(self) -> Float[np.ndarray, " N"]:
        """Work of each sequence over the number of its tokens; NaN where it has none."""
        tokens = np.where(self.num_tokens > 0, self.num_tokens, np.nan)
        return self.token_evaluations / tokens

    def and_then(self, following: "Search") -> "Search":
        """Add the search of the same sequences' next piece."""
        return Search(
            num_tokens=self.num_tokens + following.num_tokens,
            self_iterations=self.self_iterations + following.self_iterations,
            token_evaluations=self.token_evaluations + following.token_evaluations,
            residual=np.concatenate((self.residual, following.residual)),
            converged=np.concatenate((self.converged, following.converged)),
        )


def join(searches: Iterable[Search]) -> Search:
    """Put the searches of several batches in a row."""
    found = list(searches)

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(search, name) for search in found])

    return Search(
        num_tokens=joined("num_tokens"),
        self_iterations=joined("self_iterations"),
        token_evaluations=joined("token_evaluations"),
        residual=joined("residual"),
        converged=joined("converged"),
    )
