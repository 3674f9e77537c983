"""Training curves, and what it cost to reach a loss."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Num


@dataclass(frozen=True, kw_only=True)
class Series:
    """A metric of training against the number of training steps done."""

    steps: Num[np.ndarray, " S"]
    values: Float[np.ndarray, " S"]


@dataclass(frozen=True, kw_only=True)
class CostToLoss:
    """What training had cost at a validation, since its beginning; None for what is not known."""

    step: int
    tokens: float | None
    flops: float | None
    seconds: float | None


def read_history(rows: Iterable[Mapping[str, str]]) -> dict[str, Series]:
    """Return the curve of each metric from the rows of ``train_*_history.csv``."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    history = {}
    for name in names:
        points = [
            (float(row["step"]), float(row[name]))
            for row in rows
            if name not in ("step", "phase") and row.get(name)
        ]
        if points:
            steps, values = np.array(points).T
            history[name] = Series(steps=steps, values=values)
    return history


def join_segments(
    segments: Iterable[tuple[Sequence[Mapping[str, str]], float]],
) -> list[Mapping[str, str]]:
    """Return the rows of all segments of a training, with ``seconds`` since its beginning.

    Parameters
    ----------
    segments
        Of each its rows, whose ``seconds`` count from its own beginning, and its wall time.
    """
    joined: list[Mapping[str, str]] = []
    before = 0.0
    for rows, train_seconds in segments:
        for row in rows:
            seconds = row.get("seconds")
            total = {"seconds": str(float(seconds) + before)} if seconds else {}
            joined.append({**row, **total})
        before += train_seconds
    return joined


def final_loss(history: Mapping[str, Series]) -> float | None:
    """Return the last loss on held-out sequences, if it was measured and is finite."""
    losses = history.get("validation_loss")
    return float(losses.values[-1]) if losses and np.isfinite(losses.values[-1]) else None


def cost_to_loss(history: Mapping[str, Series], loss: float) -> CostToLoss | None:
    """Return what training had cost when the loss on held-out sequences was first this low.

    None where it never was.
    """
    losses = history.get("validation_loss")
    reached = losses.steps[losses.values <= loss] if losses else []
    if not len(reached):
        return None

    def so_far(name: str) -> float | None:
        counted = history.get(name)
        return None if counted is None else float(np.interp(step, counted.steps, counted.values))

    step = reached[0]
    return CostToLoss(
        step=int(step),
        tokens=so_far("tokens"),
        flops=so_far("training_flops"),
        seconds=so_far("seconds"),
    )
