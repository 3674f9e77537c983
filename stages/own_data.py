"""A model on the test data of what it was trained on: evaluation with its costs, and sweeps."""

import dataclasses
from pathlib import Path
from typing import Any

from implicit_models.cost.flops import model_flops
from implicit_models.cost.meter import Measurement, Meter
from implicit_models.cost.passes import cost, reading_flops
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
from implicit_models.evaluation.state_tracking import StateTrackingResult, evaluate_state_tracking
from implicit_models.evaluation.test_time_compute import SweepResult, sweep_test_time_compute
from implicit_models.evaluation.text import TextResult, evaluate_text
from implicit_models.evaluation.text_sweep import sweep_text
from implicit_models.language_models.building import LanguageModel
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
    metrics["cost"] = _word_problem_cost(model, result, parameters.window, meter.measurement)
    return metrics, {"evaluation_by_position.csv": result.position_rows()}, None


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
    metrics["cost"] = _text_cost(model, result, parameters, meter.measurement)
    tokenizer = load_tokenizer(split.folder)
    tokens = [
        row | {"text": tokenizer.decode([int(str(row["token"]))])} for row in result.token_rows()
    ]
    files = {
        "evaluation_by_position.csv": result.position_rows(),
        "evaluation_documents.csv": result.document_rows(),
        "tokens.csv": tokens,
    }
    return metrics, files, store


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


def _word_problem_cost(
    model: LanguageModel, result: StateTrackingResult, window: int, measured: Measurement
) -> dict[str, Any]:
    """Give the costs of reading all sequences once, through the window."""
    shapes, flops, num_tokens, seconds = model_flops(model), 0.0, 0, 0.0
    for length, found in result.lengths.items():
        tokens = length * found.num_sequences
        evaluations = (found.evaluations_per_token or {}).get("mean") or 1.0
        flops += reading_flops(
            shapes,
            length=length,
            num_sequences=found.num_sequences,
            search_evaluations=(evaluations - 1) * tokens,
            window=window,
        )
        num_tokens, seconds = num_tokens + tokens, seconds + found.seconds
    return cost(flops, num_tokens, dataclasses.replace(measured, seconds=seconds))


def _text_cost(
    model: LanguageModel,
    result: TextResult,
    parameters: TextEvaluationParameters,
    measured: Measurement,
) -> dict[str, Any]:
    """Give the costs of reading the documents, and the text at all lengths."""
    shapes, flops, num_tokens, seconds = model_flops(model), 0.0, 0, 0.0
    readings = [(parameters.context_length, result.totals, result.perplexity.whole.num_tokens)]
    readings += [(n, each.totals, each.num_tokens) for n, each in result.lengths.items()]
    for length, totals, num_scored in readings:
        count = totals.num_tokens / length  # whole texts of this length, the shorter ones in part
        evaluations = totals.token_evaluations
        flops += count * reading_flops(
            shapes,
            length=length,
            search_evaluations=(evaluations - totals.num_tokens) / count if evaluations else 0.0,
            window=parameters.window,
            piece_length=parameters.piece_length,
            num_logits=round(num_scored / count),
        )
        num_tokens, seconds = num_tokens + totals.num_tokens, seconds + totals.seconds
    return cost(flops, num_tokens, dataclasses.replace(measured, seconds=seconds))
