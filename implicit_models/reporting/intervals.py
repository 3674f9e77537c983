"""How sure a share or a mean is that was found in a few runs."""

import functools
import math

import numpy as np


def share_interval(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of Clopper and Pearson of a share, ``count`` of ``total``."""
    tail = (1 - level) / 2

    def chance_of_at_most(most: int, share: float) -> float:
        terms = (
            math.comb(total, n) * share**n * (1 - share) ** (total - n) for n in range(most + 1)
        )
        return math.fsum(terms)

    def crossing(most: int, level: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            is_left = chance_of_at_most(most, middle) > level
            low, high = (middle, high) if is_left else (low, middle)
        return low

    low = 0.0 if count == 0 else crossing(count - 1, 1 - tail)
    high = 1.0 if count == total else crossing(count, tail)
    return low, high


def share_error(share: float, count: int) -> float:
    """Return the standard error of a share of ``count`` independent answers.

    Neither 0 nor 1 is certain: it is that of the share with one answer more of each sort.
    """
    certain = (share * count + 1) / (count + 2)
    return math.sqrt(certain * (1 - certain) / max(count, 1))


@functools.cache
def student_factor(count: int, level: float = 0.95) -> float:
    """Return how many standard errors an interval of a mean of so many values reaches to each side.

    The quantile of Student's t distribution: with two values 12.7, with five 2.8. Its degrees of
    freedom are `count` - 1, at least 1.
    """
    degrees = count - 1
    # With t = sqrt(degrees) * tan(angle) the density is that of an angle, cos(angle)^(degrees - 1).
    angles = np.linspace(0.0, math.pi / 2, 100_001)
    density = np.cos(angles) ** (degrees - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = float(np.interp(level, below / below[-1], angles))
    return math.sqrt(degrees) * math.tan(angle)
