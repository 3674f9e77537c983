"""The summary row of the downstream tasks: the paper's columns, from the harness's results."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from implicit_models.problems.downstream.tasks import (
    ACCURACIES,
    AVERAGE,
    PAPERS_ACCURACIES,
    PERPLEXITY,
)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A row of the downstream table.

    Attributes
    ----------
    scores, standard_errors
        By column; None for a task that was not evaluated, and for the average unless all seven of
        the paper's were. A score is None where it is not finite, and a standard error where the
        harness could make none, as of a single item.
    """

    scores: dict[str, float | None]
    standard_errors: dict[str, float | None]


def summarise(results: Mapping[str, Mapping[str, Any]]) -> Summary:
    """Read the summary row from the ``results`` of the harness's JSON.

    The average is that of the paper's seven accuracies, each task counting the same; its standard
    error takes the tasks' errors for independent.
    """
    metrics = {PERPLEXITY: ("lambada_openai", "perplexity"), **ACCURACIES}
    scores = {column: _number(results, *metrics[column]) for column in metrics}
    errors = {
        column: _number(results, task, f"{metric}_stderr")
        for column, (task, metric) in metrics.items()
    }
    accuracies = _if_all_known(scores[column] for column in PAPERS_ACCURACIES)
    spreads = _if_all_known(errors[column] for column in PAPERS_ACCURACIES)
    scores[AVERAGE] = sum(accuracies) / len(accuracies) if accuracies else None
    errors[AVERAGE] = math.hypot(*spreads) / len(spreads) if accuracies and spreads else None
    return Summary(scores=scores, standard_errors=errors)


def _if_all_known(values: Iterable[float | None]) -> list[float] | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


def _number(results: Mapping[str, Mapping[str, Any]], task: str, metric: str) -> float | None:
    value = results.get(task, {}).get(f"{metric},none")
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
