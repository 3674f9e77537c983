"""Measured models, and numbers as sentences have them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from implicit_models.reporting.intervals import wilson
from scripts import results_tables

PARTS = {2: "half", 3: "a third", 4: "a quarter", 7: "a seventh", 8: "an eighth"}
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class Model:
    """One model under all of its seeds, in their order; shares are in per cent."""

    runs: Sequence[dict[str, Any]]

    def scores(self, name: str | int = "") -> list[float]:
        """Return a score of each seed: of a length, of a test, or the only one."""
        found = [run["scores"] for run in self.runs]
        return [100 * (each[str(name)] if isinstance(each, dict) else each) for each in found]

    def perplexities(self) -> list[float]:
        return [run["scores"] for run in self.runs]

    def task(self, task: int) -> list[float]:
        return [100 * run["tasks"][str(task)] for run in self.runs]

    def tasks(self) -> dict[int, float]:
        """Return what it has of each task, mean of its seeds."""
        return {int(task): statistics.mean(self.task(int(task))) for task in self.runs[0]["tasks"]}

    @property
    def flops(self) -> float:
        return statistics.mean(run["training_flops"] for run in self.runs)

    @property
    def seconds(self) -> float:
        return statistics.mean(run["train_seconds"] for run in self.runs)

    @property
    def parameters(self) -> int:
        return self.runs[0]["num_parameters"]


def model(presets: str, label: str, dataset: str | None = None) -> Model:
    """Return a model of one or several presets, called as in their table."""
    found = [
        run
        for run in results_tables.runs_of(presets.split())
        if run["label"] == label and dataset in (None, run["dataset"])
    ]
    assert found, f"{presets} has no {label}"
    return Model(sorted(found, key=lambda run: run["seed"]))


def span(values: Sequence[float], digits: int = 0) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def each(values: Sequence[float], digits: int = 0) -> str:
    *first, last = (f"{value:.{digits}f}" for value in values)
    return f"{', '.join(first)} and {last}"


def mean(values: Sequence[float], digits: int = 1) -> str:
    return f"{statistics.mean(values):.{digits}f}"


def part(less: float, more: float) -> str:
    """Return which part of one number another is."""
    return PARTS[round(more / less)]


def held(scores: Sequence[float]) -> int:
    """Return how many seeds have 99 % or more."""
    return sum(score >= 99 for score in scores)


def rate(scores: Sequence[float]) -> str:
    """Return the 95 % interval of the share of seeds that hold."""
    low, high = wilson(held(scores), len(scores))
    return f"{100 * low:.0f} to {100 * high:.0f} %"


def wins(one: Model, other: Model) -> int:
    """Return on how many tasks the first has the higher mean."""
    others = other.tasks()
    return sum(share > others[task] for task, share in one.tasks().items())


def welch(one: Sequence[float], other: Sequence[float]) -> str:
    """Return Welch's t of two models' seeds."""
    errors = sum(statistics.variance(scores) / len(scores) for scores in (one, other))
    return f"{(statistics.mean(one) - statistics.mean(other)) / errors**0.5:.1f}"


def apart(values: Sequence[float]) -> float:
    return max(values) - min(values)
