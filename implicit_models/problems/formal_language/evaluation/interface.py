"""What stages ask of the evaluation of formal languages."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from implicit_models.cost.meter import Meter
from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation.costs import total_cost
from implicit_models.evaluation.sweep import Measured
from implicit_models.evaluation.sweep import sweep as sweep_compute
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import num_parameters
from implicit_models.language_models.phases import search_settings, search_used
from implicit_models.language_models.placement import default_device
from implicit_models.language_models.serialisation import load_model
from implicit_models.problems.answers import Evaluated, Swept
from implicit_models.problems.formal_language.data.splits import StringsError, open_splits
from implicit_models.problems.formal_language.evaluation.answers import by_split, read_strings
from implicit_models.problems.formal_language.parameters import (
    FormalLanguageEvaluationParameters,
    FormalLanguageSweepParameters,
)

VALIDATION = "validation"


def evaluate(model: Path, data: Path, parameters: FormalLanguageEvaluationParameters) -> Evaluated:
    """Evaluate on the validation strings, and on those of each test."""
    tests = open_splits(data, []).metadata["tests"]
    names = [VALIDATION, *tests]
    opened = open_splits(data, names)
    opened.verify()
    loaded = load_model(model, default_device())
    implicit = is_implicit(loaded)
    phase = search_settings(parameters, loaded.config).phase() if implicit else None
    with Meter(loaded.device) as meter:
        results = {
            name: read_strings(
                loaded,
                opened.splits[name].rows(slice(parameters.num_sequences)),
                phase=phase,
                batch_size=parameters.batch_size,
                description=name,
            )
            for name in names
        }
    readings = [(int(r.num_tokens.sum()), r.flops, r.seconds) for r in results.values()]
    num_answers = opened.metadata["num_answers"]
    metrics = {
        "data": "formal_language",
        "language": opened.metadata["language"],
        "size": opened.metadata["size"],
        "objective": opened.metadata["objective"],
        "kind": "implicit" if implicit else "explicit",
        "num_parameters": num_parameters(loaded),
        "chance": {"accuracy": {name: r.most_frequent for name, r in results.items()}},
        "splits": names,
        **by_split(results, num_answers),
        "search": search_used(parameters, loaded),
        "cost": total_cost(readings, meter.measurement),
    }
    return Evaluated(
        metrics=metrics,
        headline=_headline(metrics),
        files={
            "evaluation_by_position.csv": [
                {"split": name, **row, "position": row["longest"], "score": row["accuracy"]}
                for name, result in results.items()
                for row in result.length_rows()
            ]
        },
        score=(f"accuracy.{tests[0]}", metrics["accuracy"][tests[0]], True),
    )


def sweep(model: Path, data: Path, parameters: FormalLanguageSweepParameters) -> Swept:
    """Sweep test-time compute on the shorter validation strings.

    Raises
    ------
    StringsError
        Where there are too few of them.
    """
    opened = open_splits(data, [VALIDATION])
    opened.verify()
    split = opened.splits[VALIDATION]
    rows = np.flatnonzero(split.lengths <= parameters.length)[: parameters.num_sequences]
    if len(rows) < parameters.num_sequences:
        raise StringsError(
            f"sweep.formal_language.num_sequences = {parameters.num_sequences} is not allowed; "
            f"allowed is at most {len(rows)}, the validation strings of a length of at most "
            f"{parameters.length}: lower it or raise sweep.formal_language.length"
        )
    loaded = load_model(model, default_device())

    def measure(phase: Phase, description: str) -> Measured:
        found = read_strings(
            loaded,
            split.rows(rows),
            phase=phase,
            batch_size=parameters.batch_size,
            description=description,
        )
        assert found.search is not None
        return Measured(
            scores={"accuracy": found.accuracy},
            search=found.search,
            flops=found.flops,
            seconds=found.seconds,
        )

    result = sweep_compute(measure, parameters, loaded, num_sequences=len(rows))
    longest = int(split.num_tokens[rows].max())
    return Swept(result=dataclasses.replace(result, length=longest), score="accuracy")


def _headline(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accuracies of all splits, and what an implicit model did for them."""
    found: dict[str, Any] = {"accuracy": metrics["accuracy"]}
    if metrics["kind"] == "implicit":
        work = {name: each["mean"] for name, each in metrics["evaluations_per_token"].items()}
        found["evaluations_per_token"] = work
    return found
