"""Whether a difference between two models is more than noise."""

import math
from statistics import NormalDist, variance

import numpy as np

from implicit_models.reporting.comparison import Candidate


def chance_of_difference(one: Candidate, other: Candidate) -> float:
    """Return how probable a difference as large is between two models that are alike.

    It is that of Welch's t-test; the errors by the test questions count as known, those by the
    seeds are estimated from as many seeds as there are.
    """
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
    return _two_sided(score, total**2 / estimated if estimated else math.inf)


def _two_sided(score: float, freedom: float) -> float:
    """Return how probable a value of Student's t is that is as far from 0, or further.

    With t = sqrt(freedom) tan(angle) the density of the angle is cos(angle)^(freedom - 1).
    """
    if freedom > 1000:
        return 2 * NormalDist().cdf(-score)
    first = math.atan(score / math.sqrt(freedom))

    def weight(low: float) -> float:
        edges = np.linspace(low, math.pi / 2, 4001)
        middles = (edges[1:] + edges[:-1]) / 2
        return float((np.cos(middles) ** (freedom - 1)).sum() * (edges[1] - edges[0]))

    return weight(first) / weight(0.0)
