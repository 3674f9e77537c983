import math

import numpy as np
import pytest
import torch

from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.evaluation.scoring import TextError, score
from implicit_models.problems.text.evaluation import perplexity as module
from implicit_models.problems.text.evaluation.perplexity import evaluate_perplexity
from tests.evaluation.readable import (
    KINDS,
    brute_force,
    make,
    phase_of,
    random_tokens,
    rounding,
)
from tests.language_models.models import VOCABULARY

START = 3
DOCUMENTS = [random_tokens(length, seed=length).astype(np.uint16) for length in (9, 1, 4, 5)]
SETTINGS = [(4, 1), (4, 2), (4, 3), (4, 4), (100, 7)]
NAMES = ["a.txt", "b.txt", "c.txt", "d.txt"]
DOMAINS = ["prose", "verse", "prose", "letters"]
NUM_BYTES = np.array([20, 3, 9, 11])


def _contexts(document, context_length, stride):
    """Of each token what it may be predicted from, from the definition alone."""
    row = [START, *document]
    for token in range(len(document)):
        window = max(0, math.ceil((token + 1 - context_length) / stride))
        yield row[window * stride : token + 1]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model(kind):
    return make(kind)


@pytest.fixture(scope="module")
def nats(model):
    """The nats of each token after each context that occurs, by brute force."""
    known = {}

    def of(context, token):
        key = (*map(int, context), int(token))
        if key not in known:
            known[key] = brute_force(model, np.array(context), token)
        return known[key]

    return of


def _evaluate(model, documents=DOCUMENTS, context_length=4, stride=2, **changes):
    settings = {"batch_size": 3, "generator": np.random.default_rng(0), "bootstrap_samples": 50}
    return evaluate_perplexity(
        model,
        documents,
        start_token=START,
        context_length=context_length,
        stride=stride,
        phase=phase_of(model),
        **settings | changes,
    )


@pytest.mark.parametrize(("context_length", "stride"), SETTINGS)
def test_perplexity_is_that_of_every_token_read_alone(model, kind, nats, context_length, stride):
    expected = [
        sum(
            nats(context, token)
            for context, token in zip(
                _contexts(document, context_length, stride), document, strict=True
            )
        )
        for document in DOCUMENTS
    ]
    for batch_size, piece_length in ((3, None), (64, 3)):
        found = _evaluate(
            model,
            context_length=context_length,
            stride=stride,
            batch_size=batch_size,
            piece_length=piece_length,
        )
        np.testing.assert_allclose(found.nats, expected, rtol=rounding(kind))
        assert found.whole.num_tokens == sum(map(len, DOCUMENTS))
        assert found.whole.perplexity == pytest.approx(
            math.exp(sum(expected) / found.whole.num_tokens), rel=1e-4
        )


@pytest.fixture(scope="module")
def explicit():
    return make("explicit mamba2")


def test_domains_and_documents_add_up_to_the_whole(explicit):
    found = _evaluate(explicit, names=NAMES, domains=DOMAINS, num_bytes=NUM_BYTES)
    assert list(found.domains) == ["letters", "prose", "verse"]
    for name in ("num_tokens", "num_documents", "num_bytes"):
        assert sum(getattr(each, name) for each in found.domains.values()) == (
            getattr(found.whole, name)
        )
    prose = found.domains["prose"]
    assert (prose.num_tokens, prose.num_documents, prose.num_bytes) == (13, 2, 29)
    assert prose.nats_per_token == pytest.approx(found.nats[[0, 2]].sum() / 13)
    assert prose.bits_per_byte == pytest.approx(found.nats[[0, 2]].sum() / 29 / math.log(2))
    rows = found.document_rows()
    assert [row["document"] for row in rows] == NAMES
    assert [row["num_tokens"] for row in rows] == [9, 1, 4, 5]
    assert [row["num_bytes"] for row in rows] == NUM_BYTES.tolist()
    assert rows[2]["perplexity"] == pytest.approx(math.exp(found.nats[2] / 4))
    assert rows[2]["bits_per_byte"] == pytest.approx(found.nats[2] / 9 / math.log(2))


def test_errors_are_over_documents_or_over_the_windows_of_one(explicit):
    found = _evaluate(explicit, domains=DOMAINS)
    assert found.whole.standard_error > 0
    assert found.domains["prose"].standard_error > 0
    assert found.domains["letters"].standard_error > 0  # of two windows
    assert found.domains["verse"].standard_error is None  # of one token
    assert found.metrics()["bootstrap"] == "documents"
    assert _evaluate(explicit, DOCUMENTS[:1]).metrics()["bootstrap"] == "windows"
    assert found.metrics()["max_tokens"] is None


def test_bytes_may_be_unknown(explicit):
    found = _evaluate(explicit)
    assert found.whole.bits_per_byte is None and found.whole.num_bytes is None
    assert found.metrics()["bits_per_byte"] is None
    assert found.document_rows()[0]["num_bytes"] is None


def test_a_sample_scores_the_beginnings(explicit):
    found = _evaluate(explicit, max_tokens=12, num_bytes=NUM_BYTES)
    assert found.documents.num_tokens.tolist() == [4, 1, 4]
    chosen = {"num_documents": 3, "num_cut_documents": 1, "num_documents_in_all": 4}
    assert found.metrics().items() >= (chosen | {"max_tokens": 12}).items()
    whole = _evaluate(explicit, [document[:4] for document in DOCUMENTS])
    np.testing.assert_allclose(found.nats, whole.nats[:3], rtol=1e-9)
    assert found.whole.num_bytes == round(20 * 4 / 9 + 3 + 9)


def test_documents_are_read_where_they_lie(explicit):
    class Lazy:
        def __len__(self):
            return 10**6

        def __getitem__(self, key):
            assert isinstance(key, slice) and key.stop - key.start <= 8
            return np.full(key.stop - key.start, 5)

    found = _evaluate(explicit, [Lazy()], context_length=8, stride=8, max_tokens=40)
    assert found.whole.num_tokens == 40


def test_work_counts_every_token_that_is_read():
    model = make("implicit llama")
    found = _evaluate(model, context_length=4, stride=2)
    # 9 tokens in windows of 4, 4, 4, and 3; 1; 4; and 5 in windows of 4 and 3.
    assert found.totals.num_tokens == 15 + 1 + 4 + 7
    assert found.totals.token_evaluations >= found.totals.num_tokens * 2
    assert found.totals.evaluations_per_token == (
        found.totals.token_evaluations / found.totals.num_tokens
    )
    assert found.totals.share_converged == 1.0
    assert set(found.totals.self_iterations) == {"mean", "p50", "p95"}


@pytest.mark.parametrize("kind_of_it", ["implicit mamba2", "transformers llama"])
@pytest.mark.parametrize("breaks_after", [1, 3])
def test_an_interrupted_evaluation_ends_in_the_same_numbers(
    kind_of_it, breaks_after, tmp_path, monkeypatch
):
    model = make(kind_of_it)
    store = ScoreStore(tmp_path / "kept", "x" * 64)
    expected = _evaluate(model, batch_size=2)
    calls = []

    def breaking(*arguments, **settings):
        calls.append(1)
        if len(calls) > breaks_after:
            raise KeyboardInterrupt
        return score(*arguments, **settings)

    monkeypatch.setattr(module, "score", breaking)
    with pytest.raises(KeyboardInterrupt):
        _evaluate(model, batch_size=2, store=store)
    calls[:] = [1] * -100
    monkeypatch.setattr(
        module, "score", lambda *a, **settings: (calls.append(1), score(*a, **settings))[1]
    )
    found = _evaluate(model, batch_size=2, store=store)
    assert len(calls) == 4 - breaks_after
    assert found.metrics() == expected.metrics()
    assert found.document_rows() == expected.document_rows()
    assert found.totals.token_evaluations == expected.totals.token_evaluations
    assert found.totals.self_iterations == expected.totals.self_iterations


def test_mistakes_are_named(explicit):
    empty = [*DOCUMENTS, np.zeros(0, dtype=np.uint16)]
    with pytest.raises(TextError, match=r"e\.txt has no token"):
        _evaluate(explicit, empty, names=[*NAMES, "e.txt"])
    with pytest.raises(TextError, match=f"the token {VOCABULARY}, .* tokenised for another model"):
        _evaluate(explicit, [np.array([1, 2, VOCABULARY, 3])])
    with pytest.raises(ValueError, match="stride is 5"):
        _evaluate(explicit, stride=5)


def test_likelihoods_that_are_not_finite_are_null_and_logged(explicit, caplog):
    model = make("explicit mamba2")
    with torch.no_grad():
        model.lm_head.weight[0, 0] = torch.nan
    found = _evaluate(model, names=NAMES)
    assert found.metrics()["perplexity"] is None and found.metrics()["standard_error"] is None
    assert "not finite, first in a.txt" in caplog.text
