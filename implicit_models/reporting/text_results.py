"""What the evaluation of a language model of text left beside its ``evaluation.json``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

MODES = ("window", "simultaneous", "sequential")


@dataclass(frozen=True, kw_only=True)
class PositionCurve:
    """Perplexity by position; each point is a range of positions.

    Attributes
    ----------
    positions
        The last position of each range, from 1.
    """

    positions: Int[np.ndarray, " S"]
    perplexity: Float[np.ndarray, " S"]


@dataclass(frozen=True, kw_only=True)
class ShownToken:
    """A token of the shown text.

    Attributes
    ----------
    nats
        Its surprise: minus the logarithm of its probability.
    self_iterations
        Evaluations of the cell at the token that it is predicted from; NaN for an explicit model.
    """

    text: str
    nats: float
    self_iterations: float


def read_perplexity_by_position(rows: Iterable[Mapping[str, str]]) -> dict[int, PositionCurve]:
    """Give the curve of each length from the rows of ``evaluation_by_position.csv``."""
    points: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        point = (int(row["position"]), _number(row["perplexity"]))
        points.setdefault(int(row["length"]), []).append(point)
    return {
        length: PositionCurve(
            positions=np.array([position for position, _ in found]),
            perplexity=np.array([perplexity for _, perplexity in found]),
        )
        for length, found in points.items()
    }


def read_shown_tokens(rows: Iterable[Mapping[str, Any]]) -> list[ShownToken]:
    """Give the tokens under ``tokens`` in ``evaluation.json``, which may be none."""
    return [
        ShownToken(
            text=row["text"],
            nats=_number(row["nats"]),
            self_iterations=_number(row.get("self_iterations")),
        )
        for row in rows
    ]


def mean_of(value: Any) -> float | None:
    """Give the mean of a distribution, or a single number as it is."""
    return value["mean"] if isinstance(value, Mapping) else value


def _number(written: str | float | None) -> float:
    return np.nan if written is None or written == "" else float(written)
