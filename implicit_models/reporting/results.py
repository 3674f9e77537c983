"""What the stages left on disk, run by run."""

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Num

# The stages of dvc.yaml that write an entry's results, by the kind of its model.
TRAINING_STAGES = {"implicit": ("train_bounded", "train_free"), "explicit": ("train_baseline",)}
EVALUATION_STAGE = {"implicit": "evaluate_benchmarks", "explicit": "evaluate_baselines"}
SWEEP_STAGE = "sweep_test_time_compute"


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
        The content of params.yaml: its tables ``runs`` and ``baselines``.

    Raises
    ------
    MissingResultError
        Naming the file that a run has not produced, and the stage that writes it.
    """
    tables = (("implicit", parameters.get("runs")), ("explicit", parameters.get("baselines")))
    return [
        _read_run(directory / name, kind, entry)
        for kind, table in tables
        for name, entry in (table or {}).items()
    ]


def _read_run(folder: Path, kind: str, entry: Mapping[str, Any]) -> RunResults:
    stages, evaluation = TRAINING_STAGES[kind], EVALUATION_STAGE[kind]
    sweep = None
    if kind == "implicit":
        sweep = _read_json(folder / "test_time_compute.json", SWEEP_STAGE)
    rows = [row for stage in stages for row in _read_csv(folder / f"{stage}_history.csv", stage)]
    sections = [entry[name] for name in ("bounded", "free", "training") if name in entry]
    return RunResults(
        name=folder.name,
        kind=kind,
        parameters=entry,
        dataset=entry["dataset"],
        training_length=max(section["lengths"]["end"] for section in sections),
        phase_change=entry["bounded"]["num_training_steps"] if kind == "implicit" else None,
        evaluation=_read_json(folder / "evaluation.json", evaluation),
        test_time_compute=sweep,
        training={stage: _read_json(folder / f"{stage}.json", stage) for stage in stages},
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
