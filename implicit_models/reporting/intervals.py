"""How sure a share or a mean is that was found in a few runs."""

import math


def clopper_pearson(count: int, total: int) -> tuple[float, float]:
    """Return the exact 95 % interval of Clopper and Pearson of a share, ``count`` of ``total``."""
    from scipy.special import betaincinv

    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, 0.025))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 0.975))
    return low, high


def share_error(share: float, count: int) -> float:
    """Return the standard error of a share of ``count`` independent answers.

    Neither 0 nor 1 is certain: it is that of the share with one answer more of each sort.
    """
    certain = (share * count + 1) / (count + 2)
    return math.sqrt(certain * (1 - certain) / max(count, 1))


def t_quantile(count: int) -> float:
    """Return how many standard errors a 95 % interval of a mean of so many values reaches each way.

    The quantile of Student's t distribution: with two values 12.7, with five 2.8. Its degrees of
    freedom are `count` - 1, at least 1.
    """
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.975))
