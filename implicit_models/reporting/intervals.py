"""How sure a share or a mean is that was found in a few runs."""

import math


def wilson(count: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share, ``count`` of ``total`` (Wilson 1927).

    Of shares of few runs it is the one to prefer (Brown, Cai and DasGupta 2001): on average it
    holds as often as it says, where the exact one holds more often and is wider.
    """
    from scipy.stats import binomtest

    interval = binomtest(count, total).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


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
