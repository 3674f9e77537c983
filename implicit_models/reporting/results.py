"""What the stages left on disk, run by run."""

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Num


class _Table(NamedTuple):
    """A table of params.yaml: what its models are, and the stages that write their results.

    Those of training are under the names of the files that they write.
    """

    kind: str
    training: dict[str, str]
    evaluation: str
    sweep: str | None


_TABLES = {
    "runs": _Table(
        "implicit",
        {"train_bounded": "train_bounded", "train_free": "train_free"},
        "evaluate_benchmarks",
        "sweep_test_time_compute",
    ),
    "upcycled": _Table(
        "implicit",
        {"train_bounded": "train_upcycled_bounded", "train_free": "train_upcycled_free"},
        "evaluate_upcycled",
        "sweep_upcycled",
    ),
    "baselines": _Table(
        "explicit", {"train_baseline": "train_baseline"}, "evaluate_baselines", None
    ),
}


class MissingResultError(FileNotFoundError):
    """A run has left no results, or not all of them."""


class UnknownLengthError(ValueError):
    """A run was not evaluated at any length that it was trained on."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """A metric of training against the number of training steps done."""

    steps: Num[np.ndarray, " S"]
    values: Float[np.ndarray, " S"]


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """Everything known about one run or baseline.

    Attributes
    ----------
    kind
        ``"implicit"`` or ``"explicit"``.
    parameters
        The run's entry of params.yaml.
    dataset
        Name of its data.
    training_length
        Longest sequence seen in training.
    phase_change
        Training steps done when the free phase begins; None for explicit models.
    evaluation, test_time_compute
        The content of the files of these names; no sweep for explicit models.
    training
        The content of ``train_*.json``, by stage.
    history
        Training curves by metric.
    by_position
        Accuracy at each position, by length.
    """

    name: str
    kind: str
    parameters: Mapping[str, Any]
    dataset: str
    training_length: int
    phase_change: int | None
    evaluation: Mapping[str, Any]
    test_time_compute: Mapping[str, Any] | None
    training: Mapping[str, Mapping[str, Any]]
    history: Mapping[str, Series]
    by_position: Mapping[int, Float[np.ndarray, " L"]]

    @property
    def lengths(self) -> list[int]:
        """The evaluated lengths, in order."""
        return sorted(int(length) for length in self.evaluation["accuracy"])

    @property
    def solved_length(self) -> int:
        """The longest evaluated length that is not longer than the training length.

        Raises
        ------
        UnknownLengthError
            Where there is none.
        """
        known = [length for length in self.lengths if length <= self.training_length]
        if not known:
            raise UnknownLengthError(
                f"{self.name} was trained on {self.training_length} tokens and evaluated on "
                f"{self.lengths} only; add a length of at most {self.training_length} to "
                "evaluation.lengths"
            )
        return known[-1]

    @property
    def train_seconds(self) -> float:
        """Wall time of the training loops of all phases, validation and checkpoints included."""
        return sum(stage["train_seconds"] for stage in self.training.values())

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second over all phases of training."""
        tokens = sum(s["tokens_per_second"] * s["train_seconds"] for s in self.training.values())
        return tokens / self.train_seconds if self.train_seconds else 0.0


def read_results(directory: Path, parameters: Mapping[str, Any]) -> list[RunResults]:
    """Read the results of all runs and baselines, in the order of params.yaml.

    Parameters
    ----------
    directory
        One folder per run, under its name.
    parameters
        The content of params.yaml: its tables ``runs``, ``upcycled`` and ``baselines``.

    Raises
    ------
    MissingResultError
        Naming the file that a run has not produced, and the stage that writes it.
    """
    return [
        _read_run(directory / name, table, entry)
        for table in _TABLES
        for name, entry in (parameters.get(table) or {}).items()
    ]


def _read_run(folder: Path, table: str, entry: Mapping[str, Any]) -> RunResults:
    kind, training, evaluation, sweep = _TABLES[table]
    swept = None if sweep is None else _read_json(folder / "test_time_compute.json", sweep)
    rows = [
        row
        for file, stage in training.items()
        for row in _read_csv(folder / f"{file}_history.csv", stage)
    ]
    sections = [entry[name] for name in ("bounded", "free", "training") if name in entry]
    return RunResults(
        name=folder.name,
        kind=kind,
        parameters=entry,
        dataset=entry["dataset"],
        training_length=max(section["lengths"]["end"] for section in sections),
        phase_change=entry["bounded"]["num_training_steps"] if kind == "implicit" else None,
        evaluation=_read_json(folder / "evaluation.json", evaluation),
        test_time_compute=swept,
        training={
            file: _read_json(folder / f"{file}.json", stage) for file, stage in training.items()
        },
        history=_history(rows),
        by_position=_by_position(_read_csv(folder / "evaluation_by_position.csv", evaluation)),
    )


def _history(rows: list[dict[str, str]]) -> dict[str, Series]:
    names = dict.fromkeys(name for row in rows for name in row)
    history = {}
    for name in names:
        points = [
            (float(row["step"]), float(row[name]))
            for row in rows
            if name not in ("step", "phase") and row.get(name)
        ]
        if points:
            steps, values = np.array(points).T
            history[name] = Series(steps=steps, values=values)
    return history


def _by_position(rows: list[dict[str, str]]) -> dict[int, np.ndarray]:
    lengths = dict.fromkeys(int(row["length"]) for row in rows)
    return {
        length: np.array([float(row["accuracy"]) for row in rows if int(row["length"]) == length])
        for length in lengths
    }


def _read_json(path: Path, stage: str) -> dict[str, Any]:
    return json.loads(_read_text(path, stage), parse_constant=lambda _: math.nan)


def _read_csv(path: Path, stage: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_read_text(path, stage).splitlines()))


def _read_text(path: Path, stage: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingResultError(
            f"{path} does not exist; the stage {stage}@{path.parent.name} writes it: "
            f"`dvc repro {stage}@{path.parent.name}`"
        ) from None
