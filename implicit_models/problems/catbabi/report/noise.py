"""Whether a difference between two models is more than noise."""

import math
from statistics import variance

from implicit_models.reporting.comparison import Candidate


def welch_p_value(one: Candidate, other: Candidate) -> float:
    """Return how probable a difference as large is between two models that are alike.

    It is that of Welch's t-test; the errors by the test questions count as known, those by the
    seeds are estimated from as many seeds as there are.
    """
    from scipy.special import stdtr

    of_seeds = [
        (variance(each.values) / len(each.values), len(each.values) - 1)
        for each in (one, other)
        if len(each.values) > 1
    ]
    of_questions = one.sampling_error**2 + other.sampling_error**2
    total = of_questions + sum(each for each, _ in of_seeds)
    if not total:
        return float(one.mean == other.mean)
    score = abs(one.mean - other.mean) / math.sqrt(total)
    estimated = sum(each**2 / freedom for each, freedom in of_seeds)
    freedom = total**2 / estimated if estimated else math.inf
    return 2 * float(stdtr(freedom, -score))
