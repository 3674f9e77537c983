"""What is known of downstream tasks before anything runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from implicit_models.problems.downstream.parameters import TaskFilesParameters


def missing(key: str, data: TaskFilesParameters) -> Iterator[str]:
    """Yield the folder of tasks that is not there."""
    if data.source != "hub" and not Path(data.source).is_dir():
        yield (
            f"{key}.source = {data.source!r} is not there; put the tasks' files into this folder "
            "(docs/evaluation.md says which, and where they come from), or name another: "
            f"{key}.source=FOLDER"
        )


def downloads(key: str, data: TaskFilesParameters) -> tuple[str, ...]:
    """Return nothing: that files of the hub are downloaded is what an entry says."""
    return ()


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
