"""What stages ask of the evaluation of streams of stories."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implicit_models.cost.meter import Meter
from implicit_models.evaluation.costs import total_cost
from implicit_models.language_models.phases import search_used
from implicit_models.language_models.placement import default_device
from implicit_models.language_models.serialisation import load_model
from implicit_models.problems.answers import Evaluated, Swept
from implicit_models.problems.catbabi.data.streams import Streams, open_streams
from implicit_models.problems.catbabi.data.words import check_words
from implicit_models.problems.catbabi.evaluation.answers import evaluate_answers
from implicit_models.problems.catbabi.evaluation.sweep import sweep_answers
from implicit_models.problems.catbabi.parameters import (
    CatbabiEvaluationParameters,
    CatbabiSweepParameters,
)


def evaluate(model: Path, data: Path, parameters: CatbabiEvaluationParameters) -> Evaluated:
    """Evaluate on the stories of the test split."""
    opened = _open_test(model, data)
    loaded = load_model(model, default_device())
    all_tokens = opened.metadata["objective"] == "all"
    with Meter(loaded.device) as meter:
        result = evaluate_answers(
            loaded, opened.splits["test"], opened.vocabulary, parameters, all_tokens=all_tokens
        )
    reading = result.reading
    metrics = result.metrics() | {
        "source": opened.metadata["source"],
        "objective": opened.metadata["objective"],
        "carry": parameters.carry,
        "search": search_used(parameters, loaded),
        "cost": total_cost([(len(reading.nll), reading.flops, reading.seconds)], meter.measurement),
    }
    return Evaluated(
        metrics=metrics,
        headline=_headline(metrics),
        files={
            "evaluation_by_position.csv": [
                row | {"score": row["accuracy"]} for row in result.position_rows()
            ]
        },
        score=("accuracy", metrics["accuracy"], True),
    )


def sweep(model: Path, data: Path, parameters: CatbabiSweepParameters) -> Swept:
    """Sweep test-time compute on the stories of the test split."""
    opened = _open_test(model, data)
    loaded = load_model(model, default_device())
    return Swept(result=sweep_answers(loaded, opened.splits["test"], parameters), score="accuracy")


def _open_test(model: Path, data: Path) -> Streams:
    """Open the test split, whose words the model must know."""
    opened = open_streams(data, ["test"])
    opened.verify()
    check_words(model, opened.vocabulary, data)
    return opened


def _headline(metrics: Mapping[str, Any]) -> dict[str, Any]:
    found = {"accuracy": metrics["accuracy"]}
    if metrics["perplexity"] is not None:
        found["perplexity"] = metrics["perplexity"]
    if metrics["kind"] == "implicit":
        found["evaluations_per_token"] = metrics["evaluations_per_token"]["mean"]
    return found
