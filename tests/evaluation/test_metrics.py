import json

import numpy as np
import pytest

from implicit_models.evaluation import metrics

LABELS = np.array([[0, 1, 2, 3], [4, 5, 6, 7]])
PREDICTED = np.array([[0, 1, 2, 9], [4, 9, 6, 9]])


def test_accuracy_counts_positions():
    assert metrics.accuracy(PREDICTED, LABELS) == 5 / 8
    assert metrics.accuracy(PREDICTED, LABELS, last=2) == 2 / 4
    assert metrics.accuracy(PREDICTED, LABELS, last=100) == 5 / 8


def test_accuracy_by_position_averages_over_sequences():
    assert metrics.accuracy_by_position(PREDICTED, LABELS).tolist() == [1.0, 0.5, 1.0, 0.0]


def test_chance_is_the_most_frequent_label():
    assert metrics.chance(np.array([[3, 3, 3, 1, 0]])) == 3 / 5
    assert metrics.chance(np.array([[3, 3, 1, 1], [3, 3, 1, 0]]), last=2) == 3 / 4


def test_distribution_of_one_to_a_hundred():
    found = metrics.distribution(np.arange(1, 101))
    assert found == pytest.approx({"mean": 50.5, "p50": 50.5, "p95": 95.05, "max": 100.0})


def test_spread_is_the_distribution_without_its_largest():
    found = metrics.spread(np.arange(1, 101))
    assert found == pytest.approx({"mean": 50.5, "p50": 50.5, "p95": 95.05})


def test_what_is_not_finite_is_left_out_and_alone_none_and_valid_json():
    found = metrics.distribution(np.array([1.0, np.inf, 3.0, np.nan]))
    assert (found["mean"], found["max"]) == (2.0, 3.0)
    found = metrics.distribution(np.array([np.nan, np.inf]))
    assert set(found.values()) == {None}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_share():
    assert metrics.share(np.array([True, False, True, True])) == 0.75
