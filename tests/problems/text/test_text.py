import json

import numpy as np
import pytest

from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.evaluation.scoring import score
from implicit_models.language_models.phases import search_settings
from implicit_models.problems.text.evaluation.text import evaluate_text
from implicit_models.problems.text.parameters import TextEvaluationParameters
from tests.evaluation.readable import make, random_tokens

PARAMETERS = TextEvaluationParameters(
    context_length=6,
    stride=3,
    batch_size=4,
    piece_length=5,
    lengths=(8, 16),
    bootstrap_samples=20,
    num_shown_tokens=9,
    window=4,
    patience=2,
    tolerance=1e-3,
    max_steps=50,
    damping=1.0,
)
END = 10
DOCUMENTS = [random_tokens(length, seed=length) % END for length in (12, 7, 11)]
STREAM = np.concatenate([[*document, END] for document in DOCUMENTS])


def _evaluate(kind, store=None):
    return evaluate_text(
        make(kind),
        DOCUMENTS,
        STREAM,
        PARAMETERS,
        start_token=END,
        names=["a", "b", "c"],
        domains=["x", "y", "x"],
        num_bytes=np.array([12, 7, 11]),
        store=store,
    )


@pytest.mark.parametrize("kind", ["implicit mamba2", "implicit llama", "explicit mamba2", "lstm"])
def test_metrics_are_the_schema_and_json(kind):
    result = _evaluate(kind)
    found = result.metrics()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    implicit = kind.startswith("implicit")
    assert (found["data"], found["kind"]) == ("text", "implicit" if implicit else "explicit")
    perplexity = {
        *("perplexity", "standard_error", "nats_per_token", "bits_per_byte", "num_tokens"),
        *("num_documents", "num_bytes", "context_length", "stride"),
    }
    assert set(found["perplexity"]) == perplexity | {
        *("num_cut_documents", "num_documents_in_all", "max_tokens", "bootstrap"),
    }
    assert found["perplexity"]["num_tokens"] == found["perplexity"]["num_bytes"] == 30
    assert found["perplexity"]["bits_per_byte"] == pytest.approx(
        found["perplexity"]["nats_per_token"] / np.log(2)
    )
    assert set(found["domains"]) == {"x", "y"} and set(found["domains"]["x"]) == perplexity
    assert list(found["length_extrapolation"]) == ["8", "16"]
    assert set(found["length_extrapolation"]["8"]) >= {
        *("perplexity", "standard_error", "perplexity_last", "num_sequences", "num_tokens"),
    }
    for name in ("self_iterations", "evaluations_per_token", "share_converged"):
        assert (found[name] is not None) == implicit
        assert (found["length_extrapolation"]["16"][name] is not None) == implicit
    if implicit:
        assert set(found["self_iterations"]) == {"mean", "p50", "p95"}
        assert found["self_iterations"]["mean"] > 1 and found["share_converged"] > 0
    assert [row["document"] for row in result.document_rows()] == ["a", "b", "c"]
    assert {row["length"] for row in result.position_rows()} == {8, 16}
    assert set(result.position_rows()[0]) == {"length", "position", "perplexity"}


@pytest.mark.parametrize("kind", ["implicit mamba2", "explicit llama"])
def test_the_first_tokens_are_shown_with_what_each_took(kind):
    rows = _evaluate(kind).token_rows()
    assert [row["position"] for row in rows] == list(range(1, 10))
    assert [row["token"] for row in rows] == STREAM[:9].tolist()
    model, implicit = make(kind), kind.startswith("implicit")
    scores = score(
        model,
        np.concatenate(([END], STREAM[:8]))[None],
        STREAM[:9][None],
        phase=search_settings(PARAMETERS, model.config).phase() if implicit else None,
        piece_length=5,
    )
    assert [row["nats"] for row in rows] == pytest.approx(scores.nll[0].tolist())
    iterations = [row["self_iterations"] for row in rows]
    assert iterations == (scores.self_iterations[0].tolist() if implicit else [None] * 9)


def test_an_evaluation_goes_on_from_what_was_kept(tmp_path):
    store = ScoreStore(tmp_path / "kept", "y" * 64)
    expected = _evaluate("implicit llama").metrics()
    first = _evaluate("implicit llama", store).metrics()
    again = _evaluate("implicit llama", store).metrics()
    assert again == first  # seconds too: nothing was read again
    for found in (expected, first):
        for each in (found, *found["length_extrapolation"].values()):
            each.pop("seconds")
    assert first == expected
