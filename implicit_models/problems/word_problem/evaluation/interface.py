"""What stages ask of the evaluation of word problems."""

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from implicit_models.cost.meter import Meter
from implicit_models.evaluation.costs import total_cost
from implicit_models.families.family import initial_memory
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.phases import search_settings, search_used
from implicit_models.language_models.placement import default_device
from implicit_models.language_models.serialisation import load_model
from implicit_models.language_models.source_names import SourceError
from implicit_models.problems.answers import Evaluated, Swept
from implicit_models.problems.word_problem.data.groups import multiplication_table
from implicit_models.problems.word_problem.data.sequences import draw_merging, prefix_products
from implicit_models.problems.word_problem.data.splits import (
    further_tests,
    name_of_test,
    open_splits,
)
from implicit_models.problems.word_problem.evaluation.pasts import past_distance
from implicit_models.problems.word_problem.evaluation.state_tracking import (
    StateTrackingResult,
    evaluate_state_tracking,
)
from implicit_models.problems.word_problem.evaluation.sweep import sweep_word_problem
from implicit_models.problems.word_problem.parameters import (
    WordProblemEvaluationParameters,
    WordProblemSweepParameters,
)

_PASTS = 3  # the stream of random numbers, apart from those of the splits
_OF_FURTHER_TESTS = (
    *("accuracy", "accuracy_last_10", "chance", "num_sequences", "seconds"),
    *("self_iterations", "evaluations_per_token", "relative_residual", "share_converged"),
)


def evaluate(model: Path, data: Path, parameters: WordProblemEvaluationParameters) -> Evaluated:
    """Evaluate on the test sequences."""
    names = {length: name_of_test(length) for length in parameters.lengths}
    further = {
        probability: {length: name_of_test(length, probability) for length in parameters.lengths}
        for probability in further_tests(open_splits(data, ()).metadata)
    }
    opened = open_splits(
        data, itertools.chain(*(each.values() for each in (names, *further.values())))
    )
    opened.verify()
    loaded = load_model(model, default_device())

    def read(
        names: Mapping[int, str], parameters: WordProblemEvaluationParameters
    ) -> StateTrackingResult:
        splits = {length: opened.split(name) for length, name in names.items()}
        return evaluate_state_tracking(loaded, splits, parameters)

    with Meter(loaded.device) as meter:
        result = read(names, parameters)
        in_one_mode = parameters.replace(num_mode_sequences=0)
        others = {str(each): read(names, in_one_mode) for each, names in further.items()}
    # Modes are compared, radii measured and further tests read besides.
    measured = dataclasses.replace(meter.measurement, energy_joules=None)
    readings = [
        (length * found.num_sequences, found.flops, found.seconds)
        for length, found in result.lengths.items()
    ]
    metrics = result.metrics() | {
        "further_tests": {
            probability: {name: each.metrics()[name] for name in _OF_FURTHER_TESTS}
            for probability, each in others.items()
        },
        "past_distance": _past_distance(loaded, opened.metadata, parameters),
        "search": search_used(parameters, loaded),
        "cost": total_cost(readings, measured),
    }
    positions = [row | {"score": row["accuracy"]} for row in result.position_rows()]
    return Evaluated(
        metrics=metrics,
        headline=_headline(metrics),
        files={"evaluation_by_position.csv": positions},
        score=_score(metrics),
    )


def _past_distance(
    model: LanguageModel,
    metadata: Mapping[str, Any],
    parameters: WordProblemEvaluationParameters,
) -> dict[str, float]:
    """Return what is left of different pasts, by the number of common tokens; see `PastDistance`.

    Empty where it is left out, or where the state grows with the sequence.
    """
    try:
        initial_memory(model, 1)
    except SourceError:
        return {}
    length = metadata["splits"]["train"]["length"]
    pairs = draw_merging(
        np.random.default_rng([metadata["seed"], _PASTS]),
        metadata["group"],
        num_sequences=parameters.num_past_sequences,
        length=length,
        identity_probability=metadata["identity_probability"],
        monoid_sampling=metadata["monoid_sampling"],
    )
    if not len(pairs):
        return {}
    labels = prefix_products(multiplication_table(metadata["group"]), pairs)
    search = search_settings(parameters, model.config) if is_implicit(model) else None
    return past_distance(model, pairs, labels, length, search).by_common_tokens()


def sweep(model: Path, data: Path, parameters: WordProblemSweepParameters) -> Swept:
    """Sweep test-time compute on the test sequences."""
    name = name_of_test(parameters.length)
    opened = open_splits(data, [name])
    opened.verify()
    loaded = load_model(model, default_device())
    return Swept(
        result=sweep_word_problem(loaded, opened.split(name), parameters), score="accuracy"
    )


def _headline(metrics: Mapping[str, Any]) -> dict[str, Any]:
    found = {"accuracy_last_10": metrics["accuracy_last_10"]}
    if metrics["kind"] == "implicit":
        for name in ("self_iterations", "evaluations_per_token"):
            found[name] = {length: each["mean"] for length, each in metrics[name].items()}
        found["mode_token_match"] = metrics["mode_token_match"]
    return found


def _score(metrics: Mapping[str, Any]) -> tuple[str, float, bool]:
    """Return the accuracy of the last answers to the longest sequences."""
    accuracy = metrics["accuracy_last_10"]
    longest = max(accuracy, key=int)
    return f"accuracy_last_10.{longest}", accuracy[longest], True
