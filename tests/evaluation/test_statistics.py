import math

import numpy as np
import pytest

from implicit_models.evaluation import statistics
from implicit_models.evaluation.metrics import spread, spread_of_counts
from implicit_models.evaluation.statistics import (
    bits_per_byte,
    finite,
    perplexity,
    perplexity_error,
)


def _error(nats, tokens, samples=4000, seed=0):
    return perplexity_error(
        np.asarray(nats, dtype=float),
        np.asarray(tokens),
        num_samples=samples,
        generator=np.random.default_rng(seed),
    )


def test_uniform_guessing_has_the_perplexity_and_bits_of_its_alphabet():
    assert perplexity(10 * math.log(256), 10) == pytest.approx(256)
    assert bits_per_byte(10 * math.log(256), 10) == pytest.approx(8)
    assert perplexity(1e6, 1) == math.inf
    assert [finite(x) for x in (1.5, math.inf, math.nan, None)] == [1.5, None, None, None]


def test_bootstrap_agrees_with_the_error_of_a_mean():
    draw = np.random.default_rng(1)
    nats = draw.normal(200.0, 10.0, 400)
    # The delta method: exp(mean) times the standard error of the mean nats of a token.
    expected = math.exp(nats.mean() / 100) * nats.std(ddof=1) / 100 / math.sqrt(400)
    assert _error(nats, np.full(400, 100)) == pytest.approx(expected, rel=0.05)


def test_bootstrap_of_two_units_is_that_of_three_outcomes():
    nats, tokens = np.array([1.0, 6.0]), np.array([2, 4])
    outcomes = np.exp([1 / 2, 7 / 6, 6 / 4])
    weights = np.array([0.25, 0.5, 0.25])
    mean = (outcomes * weights).sum()
    expected = math.sqrt((weights * (outcomes - mean) ** 2).sum())
    assert _error(nats, tokens, samples=20000) == pytest.approx(expected, rel=0.03)


def test_equal_units_leave_no_doubt_and_one_unit_tells_nothing():
    assert _error([3.0, 6.0], [1, 2]) == pytest.approx(0.0, abs=1e-12)
    assert _error([3.0], [1]) is None
    assert _error([3.0, math.nan], [1, 1]) is None


def test_bootstrap_depends_on_the_seed_alone(monkeypatch):
    nats, tokens = np.arange(9.0), np.full(9, 5)
    first = _error(nats, tokens, seed=3)
    assert first == _error(nats, tokens, seed=3) != _error(nats, tokens, seed=4)
    monkeypatch.setattr(statistics, "_MAX_DRAWN", 20)  # in many parts
    assert _error(nats, tokens, seed=3) == pytest.approx(first, rel=1e-12)


def test_spread_of_counts_is_that_of_the_values_written_out():
    draw = np.random.default_rng(0)
    for size in (1, 2, 5, 40):
        values, counts = draw.integers(0, 12, size), draw.integers(1, 7, size)
        assert spread_of_counts(values, counts) == pytest.approx(spread(np.repeat(values, counts)))
    empty = np.zeros(0, dtype=int)
    assert spread_of_counts(empty, empty) == {"mean": None, "p50": None, "p95": None}
