"""How sure a share is that was counted in a few runs."""

import math


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
