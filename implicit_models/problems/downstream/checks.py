"""What is known of downstream tasks before anything runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from implicit_models.hub_access import datasets_refused_by
from implicit_models.problems.downstream.data.task_files import HUB, is_downloaded
from implicit_models.problems.downstream.parameters import TaskFilesParameters
from implicit_models.problems.downstream.tasks import TASKS


def missing(key: str, data: TaskFilesParameters) -> Iterator[str]:
    """Yield the folder of tasks that is not there."""
    if data.source != "hub" and not Path(data.source).is_dir():
        yield (
            f"{key}.source = {data.source!r} is not there; put the tasks' files into this folder "
            "(docs/evaluation.md says which, and where they come from), or name another: "
            f"{key}.source=FOLDER"
        )


def downloads(key: str, data: TaskFilesParameters) -> Iterator[tuple[str, bool]]:
    """Yield the tasks that only a download can bring, where none is allowed."""
    refused = datasets_refused_by()
    if (
        data.source != HUB or refused is None
    ):  # that hub's files are downloaded an entry says itself
        return
    absent = [each for each in data.tasks or TASKS if not is_downloaded(each)]
    if absent:
        yield (
            f"{key}: {', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not in the cache of "
            f"the library datasets, and {refused} keeps the hub from being asked; unset that, or "
            f"put the tasks' files into a folder and make it an entry of tasks "
            "(docs/evaluation.md says which)",
            False,
        )


def check_trained(key: str, length: int, evaluation: Any) -> None:
    """See nothing: no model is trained on tasks."""


def longest_read(data: Any, evaluation: Any) -> tuple[tuple[str, int], ...]:
    """Return nothing: an entry of ``benchmarks`` says itself how long its texts are."""
    return ()


def tokens_at_most(data: TaskFilesParameters) -> dict[str, int]:
    """Return nothing: its splits are not made of a text."""
    return {}


def tokens_tested(parameters: Any) -> None:
    """Return None, for want of a text."""


def same_tokens(data: TaskFilesParameters, other: TaskFilesParameters) -> bool:
    """Return True: tasks are text, which any tokenizer reads."""
    return True


def known_vocabulary(data: TaskFilesParameters) -> None:
    """Return None: tasks have no tokens of their own."""


def data_bytes(data: TaskFilesParameters) -> int:
    """Return 0: a few megabytes."""
    return 0
