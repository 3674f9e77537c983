"""What stages ask of the downstream tasks' items."""

from pathlib import Path

from implicit_models.problems.answers import TrainingData
from implicit_models.problems.downstream.data.task_files import open_tasks, write_tasks
from implicit_models.problems.downstream.parameters import TaskFilesParameters


def prepare(parameters: TaskFilesParameters, folder: Path, unfinished: Path) -> None:
    """Write the items and look at them; they are few, so that nothing is continued."""
    write_tasks(parameters, folder)
    open_tasks(folder)


def open_training(folder: Path, parameters: TaskFilesParameters) -> TrainingData:
    """Raise a ValueError: nothing is trained on tasks."""
    raise ValueError(f"{folder} holds the items of tasks, which nothing is trained on")
