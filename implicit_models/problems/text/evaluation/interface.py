"""What stages ask of the evaluation of text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implicit_models.cost.meter import Meter
from implicit_models.evaluation.costs import total_cost
from implicit_models.evaluation.evaluation_resume import score_store
from implicit_models.language_models.phases import search_used
from implicit_models.language_models.placement import default_device
from implicit_models.language_models.serialisation import load_model
from implicit_models.problems.answers import Evaluated, Swept
from implicit_models.problems.text.data.corpora import CorpusSplit, open_corpus
from implicit_models.problems.text.data.tokenisation import load_tokenizer
from implicit_models.problems.text.data.vocabulary import check_tokenizer
from implicit_models.problems.text.evaluation.sweep import sweep_text
from implicit_models.problems.text.evaluation.text import evaluate_text
from implicit_models.problems.text.parameters import TextEvaluationParameters, TextSweepParameters

_PACKAGE = "implicit_models.problems.text"


def evaluate(model: Path, data: Path, parameters: TextEvaluationParameters) -> Evaluated:
    """Evaluate on the test documents; what was interrupted goes on.

    Raises
    ------
    VocabularyError
        Where the corpus was tokenised with another tokenizer than the model's.
    """
    split, end_of_text = _open_test(model, data)
    documents = split.documents
    store = score_store(_PACKAGE, model, split.metadata, parameters)
    loaded = load_model(model, default_device())
    with Meter(loaded.device) as meter:
        result = evaluate_text(
            loaded,
            split.document_tokens,
            split.stream(),
            parameters,
            start_token=end_of_text,
            names=documents.names,
            domains=documents.domains,
            num_bytes=documents.num_bytes,
            store=store,
        )
    totals = [result.totals, *(found.totals for found in result.lengths.values())]
    readings = [(each.num_tokens, each.flops, each.seconds) for each in totals]
    tokenizer = load_tokenizer(split.folder)
    metrics = {
        **result.metrics(),
        "search": search_used(parameters, loaded),
        "cost": total_cost(readings, meter.measurement),
        "documents": result.document_rows(),
        "tokens": [
            row | {"text": tokenizer.decode([int(str(row["token"]))])}
            for row in result.token_rows()
        ],
    }
    positions = [row | {"score": row["perplexity"]} for row in result.position_rows()]
    return Evaluated(
        metrics=metrics,
        headline=_headline(metrics),
        files={"evaluation_by_position.csv": positions},
        score=("perplexity", metrics["perplexity"]["perplexity"], False),
        discard=store.discard,
    )


def sweep(model: Path, data: Path, parameters: TextSweepParameters) -> Swept:
    """Sweep test-time compute on the test documents; see `evaluate`."""
    split, _ = _open_test(model, data)
    store = score_store(_PACKAGE, model, split.metadata, parameters)
    loaded = load_model(model, default_device())
    result = sweep_text(loaded, split.stream(), parameters, store=store)
    return Swept(result=result, score="perplexity", discard=store.discard)


def _open_test(model: Path, data: Path) -> tuple[CorpusSplit, int]:
    """Return the test split, which the model must be able to read, and the end of text."""
    corpus = open_corpus(data, ["test"])
    corpus.verify()
    check_tokenizer(model, corpus.tokenizer_digest, data)
    return corpus.split("test"), corpus.end_of_text


def _headline(metrics: Mapping[str, Any]) -> dict[str, Any]:
    perplexity = metrics["perplexity"]
    found = {name: perplexity[name] for name in ("perplexity", "bits_per_byte")}
    found["length_extrapolation"] = {
        length: each["perplexity"] for length, each in metrics["length_extrapolation"].items()
    }
    if metrics["kind"] == "implicit":
        found["evaluations_per_token"] = metrics["evaluations_per_token"]
    return found
