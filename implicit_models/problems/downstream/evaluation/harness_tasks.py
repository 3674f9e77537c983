"""The harness's own tasks: their definitions, with items from files."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import lm_eval.tasks

from implicit_models.problems.downstream.tasks import TASKS


class HarnessError(ValueError):
    """The harness cannot evaluate this model on these tasks."""


def check_tasks(tasks: Collection[str], files: Mapping[str, Path] | None) -> None:
    """Raise a HarnessError where a task is not known, has no file or is there twice."""
    for task in tasks:
        if task not in TASKS:
            raise HarnessError(f"there is no task {task!r}; allowed is {', '.join(TASKS)}")
        if files is not None and task not in files:
            raise HarnessError(f"task {task} has no file; there are {', '.join(files) or 'none'}")
    if not 0 < len(tasks) == len(set(tasks)):
        raise HarnessError(f"tasks are {list(tasks)}; allowed is one or more, each only once")


def load_tasks(
    tasks: Collection[str], files: Mapping[str, Path] | None, cache: Path
) -> dict[str, Any]:
    """Load the harness's tasks, zero-shot.

    Parameters
    ----------
    files
        As of `evaluate_tasks`.
    cache
        A folder for what the ``datasets`` library makes of the files.
    """
    definitions = Path(lm_eval.tasks.__file__).parent
    # To read all of its thousands takes ten seconds.
    folders: list[str | Path] = [
        definitions / name for name in sorted({TASKS[task].folder for task in tasks})
    ]
    manager = lm_eval.tasks.TaskManager(include_defaults=False, include_path=folders)
    specifications: list[Any] = list(tasks)
    if files is not None:
        # The harness lets nothing but the members of a group be overridden.
        members = [{"task": task, **_local(files[task], cache)} for task in tasks]
        specifications = [{"group": "local", "task": members}]
    found = manager.load(specifications)["tasks"]
    for task in found.values():
        task.set_config(key="num_fewshot", value=0)
    return found


def _local(path: Path, cache: Path) -> dict[str, Any]:
    """Override where a task's items come from, and nothing else: one split is all there is."""
    return {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(path.resolve())}, "cache_dir": str(cache)},
        "test_split": "test",
        "validation_split": None,
        "training_split": None,
    }
