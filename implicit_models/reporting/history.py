"""Training curves, and what it cost to reach a loss."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Num


@dataclass(frozen=True, kw_only=True)
class Series:
    """A metric of training against the number of training steps done."""

    steps: Num[np.ndarray, " S"]
    values: Float[np.ndarray, " S"]


def read_history(rows: Iterable[Mapping[str, str]]) -> dict[str, Series]:
    """Give the curve of each metric from the rows of ``train_*_history.csv``."""
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


def final_loss(history: Mapping[str, Series]) -> float | None:
    """Give the last loss on held-out sequences, if it was measured and is a number."""
    losses = history.get("validation_loss")
    return float(losses.values[-1]) if losses and np.isfinite(losses.values[-1]) else None


def flops_to_loss(history: Mapping[str, Series], loss: float) -> float | None:
    """Give the training FLOPs after which the loss on held-out sequences was first this low.

    None where it never was, or where the FLOPs were not counted.
    """
    if "validation_loss" not in history or "training_flops" not in history:
        return None
    losses, flops = history["validation_loss"], history["training_flops"]
    reached = losses.steps[losses.values <= loss]
    return float(np.interp(reached[0], flops.steps, flops.values)) if len(reached) else None
