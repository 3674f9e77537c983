import sqlite3

import numpy as np
import pytest

from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.evaluation.scoring import TextError, score
from implicit_models.problems.text.evaluation.length_extrapolation import (
    buckets,
    evaluate_length_extrapolation,
)
from tests.evaluation.readable import make, phase_of, random_tokens

STREAM = random_tokens(36).astype(np.uint16)
KINDS = ("implicit mamba2", "explicit llama", "lstm", "transformers llama")


def _evaluate(model, lengths=(8, 16), **changes):
    settings = {"batch_size": 3, "piece_length": 7, "generator": np.random.default_rng(0)}
    return evaluate_length_extrapolation(
        model,
        STREAM,
        lengths,
        phase=phase_of(model),
        bootstrap_samples=50,
        **settings | changes,
    )


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 20, 100, 16384])
def test_buckets_cover_every_position_and_are_the_same_at_all_lengths(length):
    ends = buckets(length)
    assert ends[-1] == length and (np.diff(ends, prepend=0) > 0).all()
    assert set(ends[:-1]) <= set(buckets(32768))
    assert len(ends) <= 4 * np.log2(2 * length) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_length_reads_the_same_text_as_if_whole(kind):
    model = make(kind)
    found = _evaluate(model)
    assert list(found) == [8, 16]
    assert {each.num_tokens for each in found.values()} == {32}
    assert [each.num_sequences for each in found.values()] == [4, 2]
    for length, each in found.items():
        inputs, labels = STREAM[:32].reshape(-1, length), STREAM[1:33].reshape(-1, length)
        nll = score(model, inputs, labels, phase=phase_of(model)).nll
        assert each.perplexity == pytest.approx(np.exp(nll.mean()), rel=1e-6)
        assert each.perplexity_last == pytest.approx(np.exp(nll[:, -length // 8 :].mean()))
        start = 0
        for end, by_bucket in zip(each.buckets, each.by_bucket, strict=True):
            assert by_bucket == pytest.approx(np.exp(nll[:, start:end].mean()), rel=1e-6)
            start = end
        assert [row["position"] for row in each.position_rows()] == each.buckets.tolist()


def test_sequences_are_counted_at_the_longest_length():
    found = _evaluate(make("explicit mamba2"), lengths=(20, 10), max_sequences=1)
    assert [(n, each.num_sequences, each.num_tokens) for n, each in found.items()] == [
        (10, 2, 20),
        (20, 1, 20),
    ]
    assert found[10].standard_error > 0 and found[20].standard_error is None


def test_no_length_is_no_work_and_too_long_a_one_is_refused():
    model = make("explicit mamba2")
    assert _evaluate(model, lengths=()) == {}
    assert _evaluate(model, lengths=(35,))[35].num_sequences == 1
    with pytest.raises(TextError, match="has 36 tokens; a sequence of 36 needs one more"):
        _evaluate(model, lengths=(8, 36))


def test_an_interrupted_evaluation_goes_on(tmp_path):
    model, store = make("explicit llama"), ScoreStore(tmp_path / "kept", "x" * 64)
    expected = _evaluate(model)
    _evaluate(model, lengths=(8,), store=store)
    with sqlite3.connect(store.path) as database:
        assert database.execute("DELETE FROM arrays WHERE part = 'length_8'").rowcount
    database.close()
    _evaluate(model, store=store)
    found = _evaluate(model, store=store)
    for length in expected:
        same = {**found[length].metrics(), "seconds": 0}
        assert same == {**expected[length].metrics(), "seconds": 0}
