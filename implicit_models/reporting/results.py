"""What the stages left on disk, run by run."""

import abc
import dataclasses
from collections.abc import Callable, Container, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from implicit_models.reporting.entries import TrainedEntry, trained_entry
from implicit_models.reporting.files import (
    MissingResultError,
    noting_missing,
    read_csv,
    read_json,
)
from implicit_models.reporting.history import Series, join_segments, read_history
from implicit_models.reporting.parameters import ReportParameters

if TYPE_CHECKING:
    from implicit_models.reporting.figures.style import RunStyle
    from implicit_models.reporting.sections import Section

__all__ = ["MissingResultError", "RunResults", "Series", "read_results"]


class _Table(NamedTuple):
    """The stages that write the results of the models of a table of params.yaml.

    Those of training are under the names of the files that they write.
    """

    training: dict[str, str]
    evaluation: str
    sweep: str | None


_TABLES = {
    "runs": _Table(
        {"train_bounded": "train_bounded", "train_free": "train_free"},
        "evaluate_benchmarks",
        "sweep_test_time_compute",
    ),
    "upcycled": _Table(
        {"train_bounded": "train_upcycled_bounded", "train_free": "train_upcycled_free"},
        "evaluate_upcycled",
        "sweep_upcycled",
    ),
    "baselines": _Table({"train_baseline": "train_baseline"}, "evaluate_baselines", None),
    "matched": _Table({"train_baseline": "train_matched"}, "evaluate_matched", None),
}


@dataclass(frozen=True, kw_only=True)
class RunResults(abc.ABC):
    """Everything known about one run or baseline; a kind of problem says what it means.

    Attributes
    ----------
    kind
        ``"implicit"``, ``"explicit"`` or ``"recurrent"``, as its family says.
    problem
        The kind of what it learned and was evaluated on, such as ``"word_problem"``.
    entry
        The run's entry of params.yaml.
    group
        What is the same for runs whose entries differ in nothing but the seed.
    dataset
        Name of its data.
    training_length
        Longest sequence seen in training.
    phase_change
        Training steps done when the free phase begins; None for explicit models.
    evaluation, test_time_compute
        The content of the files of these names; no sweep for explicit models. The points of a
        sweep are in the order of what they allow, the most work last.
    position_rows
        The rows of ``evaluation_by_position.csv``.
    training
        The content of ``train_*.json``, by stage.
    history
        Training curves by metric, over all phases.
    source
        The run whose weights its training began from; None where there is none, or where it is not
        among the results.
    """

    name: str
    kind: str
    problem: str
    entry: TrainedEntry
    group: str
    dataset: str
    training_length: int
    phase_change: int | None
    evaluation: Mapping[str, Any]
    test_time_compute: Mapping[str, Any] | None
    training: Mapping[str, Mapping[str, Any]]
    history: Mapping[str, Series]
    position_rows: Sequence[Mapping[str, str]]
    source: "RunResults | None" = None

    @classmethod
    @abc.abstractmethod
    def section(
        cls,
        runs: Sequence[Any],
        dataset: Any,
        parameters: ReportParameters,
        styles: "Mapping[str, RunStyle]",
    ) -> "Section":
        """Write the section of the runs, all of this class, on one data set.

        Parameters
        ----------
        dataset
            Its entry of params.yaml.
        """

    @abc.abstractmethod
    def scores(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the run beside its costs."""

    solved_over: ClassVar[str] = "all tokens"
    """What of a sequence the accuracies of `solutions` are of."""

    def solutions(self) -> dict[int, float]:
        """Return the accuracies that decide whether a run has solved its task, by length.

        The first is that of the length trained on. Empty where a problem knows no such thing.
        """
        return {}

    def paper_columns(self) -> dict[str, float]:
        """Return the scores that stand in a column of the paper's downstream table."""
        return {}

    def chance_of(self, score: str, place: str | int | None = None) -> float:
        """Return what chance has of a score in the evaluation: always one and the same answer.

        Parameters
        ----------
        place
            The length, or the split, of a score that has several.
        """
        found = self.evaluation["chance"][score]
        return found if place is None else found[str(place)]

    @property
    def ranked_chance(self) -> float | None:
        """What chance has of the score that models are ranked by; None where there is no such."""
        return None

    @property
    def chance_loss(self) -> float | None:
        """The training loss, in nats, of a model that knows nothing; None where it is not known."""
        return None

    @property
    def test_perplexity(self) -> float | None:
        """The perplexity of every token of the test; None where there is no such."""
        return None

    @property
    def num_parameters(self) -> int:
        """All parameters of the model."""
        return self.evaluation["num_parameters"]

    @property
    def num_layers(self) -> int | None:
        """The layers of the model; None where its entry does not tell."""
        return getattr(self.entry.model, "num_layers", None)

    @property
    def num_training_steps(self) -> float | None:
        """Optimiser steps of all phases; None where they are not known."""
        return self._total("num_training_steps")

    @property
    def train_seconds(self) -> float:
        """Wall time of the training loops of all phases, validation and checkpoints included."""
        return sum(stage["train_seconds"] for stage in self.training.values())

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second over all phases of training."""
        tokens = sum(s["tokens_per_second"] * s["train_seconds"] for s in self.training.values())
        return tokens / self.train_seconds if self.train_seconds else 0.0

    @property
    def training_flops(self) -> float | None:
        """Floating-point operations of all phases of training; None where they are not known."""
        return self._total("training_flops")

    @property
    def has_source(self) -> bool:
        """Whether its training began from the weights of another model."""
        return self.entry.model.weights_source is not None

    @property
    def source_flops(self) -> float | None:
        """Training FLOPs of its source, and of that one's; 0 without one, None where unknown."""
        if not self.has_source:
            return 0.0
        if self.source is None:
            return None
        return self.source.flops_with_source

    @property
    def flops_with_source(self) -> float | None:
        """Training FLOPs, those of its source included; None where some are not known."""
        own, earlier = self.training_flops, self.source_flops
        return None if own is None or earlier is None else own + earlier

    @property
    def num_training_tokens(self) -> float | None:
        """Tokens that all phases of training have read; None where it is not known."""
        return self._total("num_tokens")

    @property
    def energy_joules(self) -> float | None:
        """What all phases of training have used, in J; None where it was not measured."""
        return self._total("energy_joules")

    @property
    def peak_memory_bytes(self) -> float | None:
        """The most memory that a phase of training held; None where it is not known."""
        found = [stage.get("peak_memory_bytes") for stage in self.training.values()]
        return max((peak for peak in found if peak is not None), default=None)

    def _total(self, name: str) -> float | None:
        found = [stage.get(name) for stage in self.training.values()]
        known = [value for value in found if value is not None]
        return sum(known) if len(known) == len(found) else None


def read_results(
    directory: Path,
    tables: Mapping[str, Mapping[str, TrainedEntry]],
    class_of: Callable[[str], type[RunResults]],
    missing: MutableMapping[str, str] | None = None,
    datasets: Container[str] | None = None,
) -> list[RunResults]:
    """Read the results of all runs and baselines, in the order of params.yaml.

    Parameters
    ----------
    directory
        One folder per run, under its name.
    tables
        All entries of ``runs``, ``upcycled``, ``baselines`` and ``matched``: seeds are told by
        what they are made from and matched to, whether or not that has results.
    class_of
        Finds the class of the results of a kind of problem.
    missing
        Where it is given, entries without all of their results yet are left out, and are put here
        with the command that makes what they lack.
    datasets
        The data whose models are read; None is all.

    Raises
    ------
    MissingResultError
        Naming the file that a run has not produced, and the stage that writes it.
    """
    models = {name: each for entries in tables.values() for name, each in entries.items()}
    runs = {}
    for table in _TABLES:
        for name, entry in tables.get(table, {}).items():
            if datasets is None or entry.dataset in datasets:
                with noting_missing(name, missing):
                    group = entry.seed_group(models)
                    runs[name] = _read_run(directory / name, table, entry, group, class_of)

    def with_source(run: RunResults) -> RunResults:
        source = runs.get(trained_entry(run.entry.model.weights_source or "") or "")
        return run if source is None else dataclasses.replace(run, source=with_source(source))

    return [with_source(run) for run in runs.values()]


def _in_order(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep with its points in the order of what they allow, the most work last."""
    return {
        **sweep,
        "self_iterations": sorted(sweep["self_iterations"], key=lambda p: p["self_iterations"]),
        "tolerance": sorted(sweep["tolerance"], key=lambda p: -p["tolerance"]),
    }


def _read_run(
    folder: Path,
    table: str,
    entry: TrainedEntry,
    group: str,
    class_of: Callable[[str], type[RunResults]],
) -> RunResults:
    training, evaluation, sweep = _TABLES[table]
    swept = None if sweep is None else read_json(folder / "test_time_compute.json", sweep)
    costs = {file: read_json(folder / f"{file}.json", stage) for file, stage in training.items()}
    segments = [
        (read_csv(folder / f"{file}_history.csv", stage), costs[file]["train_seconds"])
        for file, stage in training.items()
    ]
    evaluated = read_json(folder / "evaluation.json", evaluation)
    problem = evaluated["data"]
    return class_of(problem)(
        name=folder.name,
        kind=entry.model.kind,
        problem=problem,
        entry=entry,
        group=group,
        dataset=entry.dataset,
        training_length=entry.training_length,
        phase_change=entry.phase_change,
        evaluation=evaluated,
        test_time_compute=None if swept is None else _in_order(swept),
        training=costs,
        history=read_history(join_segments(segments)),
        position_rows=read_csv(folder / "evaluation_by_position.csv", evaluation),
    )
