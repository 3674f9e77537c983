"""The parameters of downstream tasks: where their items are, and which models are tested."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model

from implicit_models.language_models.parameters import SearchParameters
from implicit_models.parameters import Distinct, ParameterError, Parameters
from implicit_models.problems.downstream.tasks import TASKS
from implicit_models.problems.tested_apart import TestedApart


class _TaskPaths(Parameters):
    """Files of each task, relative to the source; none named means those at the usual places."""

    def check(self) -> None:
        """Check that as many files are named as a task has."""
        for name, task in TASKS.items():
            found, most = getattr(self, name), max(map(len, task.layouts), default=1)
            if len(found) > most:
                raise ParameterError(
                    f"{name} = {found!r} is not allowed; allowed is at most {most} "
                    "file" + ("s, items and labels" if most > 1 else "")
                )


if TYPE_CHECKING:
    TaskName = str
    TaskPathsParameters = _TaskPaths
else:
    TaskName = Literal[tuple(TASKS)]
    TaskPathsParameters = create_model(
        "TaskPathsParameters",
        __base__=_TaskPaths,
        __module__=__name__,
        **dict.fromkeys(TASKS, (tuple[str, ...], ())),
    )


class TaskFilesParameters(Parameters):
    """Benchmark tasks: their items, from local files or from the hub.

    Attributes
    ----------
    source
        A folder, or ``hub`` to download: an entry of ``hub_tasks`` needs none, one of ``tasks`` has
        a folder, which DVC watches.
    files
        Of tasks whose files are not at the usual places of the folder: ``TASK.jsonl``, or where its
        layouts in `downstream.tasks` say.
    tasks
        Which tasks; null is all of them.
    limit
        The first so many items of each; null is all.
    """

    kind: Literal["downstream"] = "downstream"
    source: str = "hub"
    files: TaskPathsParameters = TaskPathsParameters()
    tasks: Distinct[TaskName] | None = None
    limit: int | None = Field(default=None, ge=1)

    def check(self) -> None:
        """Check that the source names something, and that no file of the hub's is named."""
        if self.source == "":
            raise ParameterError("source = '' is not allowed; allowed is a folder, or 'hub'")
        if self.source == "hub" and self.files != TaskPathsParameters():
            raise ParameterError(
                "files = ... is not allowed; the hub's files are known: leave it out, or name a "
                "folder in source"
            )


class BenchmarkParameters(TestedApart, SearchParameters):
    """An entry of the table ``benchmarks``: one model on the downstream tasks.

    Attributes
    ----------
    model
        As in `TestedApart`.
    tasks
        An entry of ``tasks`` or ``hub_tasks``.
    names
        Which of its tasks; null is all of them.
    batch_size
        Texts read together; it changes the time and the memory.
    max_length
        Tokens of a text at most, what is longer being cut on the left; null as lm-eval finds it in
        the model's configuration or tokenizer, or else 2048.
    limit
        The first so many items of each task; null is all.
    solver, best_so_far, damping, window, patience, tolerance, max_steps
        Of an implicit model's searches, as in `SearchParameters`; left out, as the model's
        configuration has them. An explicit model has no use for them.
    bootstrap_samples
        Resamplings behind the standard error of the perplexity.
    """

    data_key = "tasks"
    label = "benchmark"
    stage = "evaluate_downstream"
    results_file = "benchmarks.json"
    tracks_headline = True

    tasks: str
    names: Distinct[TaskName] | None = None
    batch_size: int = Field(default=32, ge=1)
    max_length: int | None = Field(default=None, ge=1)
    limit: int | None = Field(default=None, ge=1)
    bootstrap_samples: int = Field(default=1000, ge=2)

    @property
    def metric_prefix(self) -> str:
        """The beginning of the tracked metrics' names."""
        return "downstream."


SCHEMAS = {"tasks": TaskFilesParameters, "hub_tasks": TaskFilesParameters}
IS_TEXT = True
EVALUATION = None
SWEEP = None
ENTRIES = {"benchmarks": BenchmarkParameters}


def check_entry(key: str, data: TaskFilesParameters) -> None:
    """See that items come from where their table says."""
    is_hubs = key.startswith("hub_tasks.")
    if (data.source == "hub") is not is_hubs:
        allowed = "'hub', or nothing" if is_hubs else "a folder; the hub's are entries of hub_tasks"
        raise ParameterError(f"{key}.source = {data.source!r} is not allowed; allowed is {allowed}")


def check_training(key: str, data: TaskFilesParameters) -> tuple[int, str]:
    """Raise a ParameterError: nothing is trained on tasks."""
    raise ParameterError(f"{key} is a set of tasks; allowed is data to train on")


def check_carry(key: str, data: TaskFilesParameters, shortest: int) -> None:
    """Raise a ParameterError: nothing is trained on tasks."""
    raise ParameterError(f"{key} is a set of tasks; allowed is data to train on")


def num_sequences(data: TaskFilesParameters, split: str) -> None:
    """Return None: nothing is trained on tasks."""


def check_evaluation(key: str, data: TaskFilesParameters, parameters: Any, where: str = "") -> None:
    """See that there are the tasks: their files are looked at when they are read."""


def check_sweep(key: str, data: TaskFilesParameters, parameters: Any, where: str = "") -> None:
    """Raise a ParameterError: nothing is swept on tasks."""
    raise ParameterError(f"{key} is a set of tasks; no model is swept on tasks")


def vocabulary_size(data: TaskFilesParameters) -> int:
    """Raise a ParameterError: tasks are text, and have no tokens of their own."""
    raise ParameterError("a set of tasks has no vocabulary; allowed is data to train on")
