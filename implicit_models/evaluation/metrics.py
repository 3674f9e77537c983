"""Numbers from predictions; numpy only."""

import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped


def accuracy(
    predicted: Integer[np.ndarray, "N L"],
    labels: Integer[np.ndarray, "N L"],
    last: int | None = None,
) -> float:
    """Return the share of correct positions, of all or of the ``last`` ones of each sequence."""
    right = predicted == labels
    return float((right if last is None else right[:, -last:]).mean())


def accuracy_by_position(
    predicted: Integer[np.ndarray, "N L"], labels: Integer[np.ndarray, "N L"]
) -> Float[np.ndarray, " L"]:
    """Return the share of sequences that are correct at each position."""
    return (predicted == labels).mean(axis=0)


def chance(labels: Integer[np.ndarray, "..."], last: int | None = None) -> float:
    """Return the accuracy of always predicting the label that is most frequent where it is scored.

    That is among all of these, or among the ``last`` ones of each sequence.
    """
    scored = labels if last is None else labels[:, -last:]
    return float(np.unique(scored, return_counts=True)[1].max() / scored.size)


def share(flags: Bool[np.ndarray, "..."]) -> float:
    """Return the share of true flags."""
    return float(flags.mean())


def distribution(values: Shaped[np.ndarray, "..."]) -> dict[str, float | None]:
    """Return mean, median, 95th percentile (interpolated linearly) and maximum of finite values.

    None where nothing is.
    """
    values = values[np.isfinite(values)]
    if not values.size:
        return dict.fromkeys(("mean", "p50", "p95", "max"))
    p50, p95 = np.quantile(values, [0.5, 0.95])
    numbers = {"mean": values.mean(), "p50": p50, "p95": p95, "max": values.max()}
    return {name: float(number) for name, number in numbers.items()}


def spread(values: Shaped[np.ndarray, "..."]) -> dict[str, float | None]:
    """Return mean, median and 95th percentile, as `distribution` does."""
    found = distribution(values)
    return {name: found[name] for name in ("mean", "p50", "p95")}


def spread_of_counts(
    values: Integer[np.ndarray, " U"], counts: Integer[np.ndarray, " U"]
) -> dict[str, float | None]:
    """Return the `spread` of ``values``, each of which occurs ``counts`` times."""
    ordered, where = np.unique(values, return_inverse=True)
    occurs = np.bincount(where, weights=counts, minlength=len(ordered)).astype(np.int64)
    total = int(occurs.sum())
    if not total:
        return dict.fromkeys(("mean", "p50", "p95"))
    last = occurs.cumsum() - 1  # the place of each value's last occurrence in their sorted row

    def quantile(q: float) -> float:
        place = q * (total - 1)
        low = int(place)
        below, above = ordered[np.searchsorted(last, (low, min(low + 1, total - 1)))]
        return float(below + (above - below) * (place - low))

    mean = float((ordered * occurs).sum() / total)
    return {"mean": mean, "p50": quantile(0.5), "p95": quantile(0.95)}
