"""A model on the test data of what it was trained on: evaluation with its costs, and sweeps."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from implicit_models.cost.meter import Measurement, Meter
from implicit_models.cost.passes import cost
from implicit_models.data.corpora import open_corpus
from implicit_models.data.tokenisation import load_tokenizer
from implicit_models.data.word_problems import open_splits
from implicit_models.evaluation.parameters import (
    TextEvaluationParameters,
    TextSweepParameters,
    WordProblemEvaluationParameters,
    WordProblemSweepParameters,
)
from implicit_models.evaluation.score_store import ScoreStore
from implicit_models.evaluation.state_tracking import evaluate_state_tracking
from implicit_models.evaluation.test_time_compute import SweepResult, sweep_test_time_compute
from implicit_models.evaluation.text import evaluate_text
from implicit_models.evaluation.text_sweep import sweep_text
from implicit_models.language_models.placement import default_device
from implicit_models.language_models.serialisation import load_model
from stages.unfinished import score_store
from stages.vocabulary import check_tokenizer

Results = tuple[dict[str, Any], dict[str, Any], ScoreStore | None]
"""The metrics, further files, and what is to be discarded once both are written."""

Swept = tuple[SweepResult, ScoreStore | None]


def evaluate_word_problem(
    folder: Path, data: Path, parameters: WordProblemEvaluationParameters
) -> Results:
    """Evaluate on the test sequences of a word problem."""
    names = {length: f"test_L{length}" for length in parameters.lengths}
    opened = open_splits(data, names.values())
    splits = {length: opened.split(split) for length, split in names.items()}
    model = load_model(folder, default_device())
    with Meter(model.device) as meter:
        result = evaluate_state_tracking(model, splits, parameters)
    metrics = result.metrics()
    readings = [
        (length * found.num_sequences, found.flops, found.seconds)
        for length, found in result.lengths.items()
    ]
    metrics["cost"] = _cost(readings, meter.measurement)
    positions = [row | {"score": row["accuracy"]} for row in result.position_rows()]
    return metrics, {"evaluation_by_position.csv": positions}, None


def evaluate_corpus(folder: Path, data: Path, parameters: TextEvaluationParameters) -> Results:
    """Evaluate on the test documents of a corpus; what was interrupted goes on.

    Raises
    ------
    VocabularyError
        Where the corpus was tokenised with another tokenizer than the model's.
    """
    corpus = open_corpus(data, ["test"])
    check_tokenizer(folder, corpus.tokenizer_digest, data)
    split = corpus.split("test")
    documents = split.documents
    store = score_store(folder, [split.metadata, parameters])
    model = load_model(folder, default_device())
    with Meter(model.device) as meter:
        result = evaluate_text(
            model,
            split.document_tokens,
            split.stream(),
            parameters,
            start_token=corpus.end_of_text,
            names=documents.names,
            domains=documents.domains,
            num_bytes=documents.num_bytes,
            store=store,
        )
    metrics = result.metrics()
    totals = [result.totals, *(found.totals for found in result.lengths.values())]
    readings = [(each.num_tokens, each.flops, each.seconds) for each in totals]
    metrics["cost"] = _cost(readings, meter.measurement)
    tokenizer = load_tokenizer(split.folder)
    metrics["documents"] = result.document_rows()
    metrics["tokens"] = [
        row | {"text": tokenizer.decode([int(str(row["token"]))])} for row in result.token_rows()
    ]
    positions = [row | {"score": row["perplexity"]} for row in result.position_rows()]
    return metrics, {"evaluation_by_position.csv": positions}, store


def sweep_word_problem(folder: Path, data: Path, parameters: WordProblemSweepParameters) -> Swept:
    """Sweep test-time compute on the test sequences of a word problem."""
    split = open_splits(data).split(f"test_L{parameters.length}")
    model = load_model(folder, default_device())
    return sweep_test_time_compute(model, split, parameters), None


def sweep_corpus(
    folder: Path, data: Path, parameters: TextSweepParameters
) -> tuple[SweepResult, ScoreStore | None]:
    """Sweep test-time compute on the test documents of a corpus; see `evaluate_corpus`."""
    corpus = open_corpus(data, ["test"])
    check_tokenizer(folder, corpus.tokenizer_digest, data)
    split = corpus.split("test")
    store = score_store(folder, [split.metadata, parameters])
    model = load_model(folder, default_device())
    return sweep_text(model, split.stream(), parameters, store=store), store


def _cost(
    readings: Iterable[tuple[int, float, float]], measured: Measurement
) -> dict[str, float | int | None]:
    """Give the costs of readings, of which each has so many tokens, FLOPs and seconds."""
    num_tokens, flops, seconds = (sum(each) for each in zip(*readings, strict=True))
    return cost(flops, int(num_tokens), dataclasses.replace(measured, seconds=seconds))
