"""Copies of bAbI as the Hugging Face hub has them: parquet files, a row for each story.

A folder holds ``NAME-qa1/train/*.parquet`` or ``NAME-qa1/train-*.parquet``, the same of
``validation`` and ``test`` and of the other tasks; NAME is ``en-valid-10k``, say. The column
``story`` has the fields id, type (0 for a sentence, 1 for a question), text, supporting_ids and
answer, each with an item for every line.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from implicit_models.bars import bar
from implicit_models.problems.catbabi.stories.reading import (
    StoryError,
    check_wanted,
    make_question,
    make_sentence,
)
from implicit_models.problems.catbabi.stories.story import Line, Story

FIELDS = ("id", "type", "text", "supporting_ids", "answer")

_SENTENCE, _QUESTION = (0, "0", "context"), (1, "1", "question")
_HUB_SPLITS = {"valid": "validation"}


def read_hub_folder(
    folder: Path, split: str, tasks: Collection[int] | None = None, *, name: str
) -> dict[int, list[Story]]:
    """Read the stories of a split, of all twenty tasks or of those asked for.

    Raises
    ------
    StoryError
        Naming the tasks whose files are missing, or file and row of what is no story.
    """
    folder = Path(folder)
    wanted = check_wanted(folder, split, tasks)
    hub_split = _HUB_SPLITS.get(split, split)
    paths = {task: _find(folder / f"{name}-qa{task}", hub_split) for task in wanted}
    if missing := [task for task in wanted if not paths[task]]:
        raise StoryError(
            f"{folder}: has no {hub_split} stories for {', '.join(f'qa{task}' for task in missing)}"
            f"; for task {missing[0]} allowed is {name}-qa{missing[0]}/{hub_split}/*.parquet or "
            f"{name}-qa{missing[0]}/{hub_split}-*.parquet; tasks may also be left out"
        )
    stories: dict[int, list[Story]] = {}
    with bar(len(wanted), f"stories of {folder.name}", "task") as counted:
        for task in wanted:
            stories[task] = [each for path in paths[task] for each in read_hub_file(path, task)]
            counted.update()
    return stories


def read_hub_file(path: Path, task: int) -> list[Story]:
    """Read the stories of a parquet file; a story's first line is the number of its row, from 1.

    Raises
    ------
    StoryError
        Naming file and row, what was found and what is allowed.
    """
    try:
        rows = parquet.read_table(path, columns=["story"]).column("story").to_pylist()
    except (pyarrow.ArrowException, KeyError, OSError) as error:
        reason = " ".join(str(error).split())
        raise StoryError(
            f"{path}: is damaged, or no parquet file with a column story ({reason}); fetch it again"
        ) from None
    if not rows:
        raise StoryError(f"{path}: is empty; a file has at least one story")
    return [_story(row, task, path, number) for number, row in enumerate(rows, 1)]


def _find(folder: Path, split: str) -> list[Path]:
    return sorted([*folder.glob(f"{split}/*.parquet"), *folder.glob(f"{split}-*.parquet")])


def _story(row: Any, task: int, path: Path, number: int) -> Story:
    place = f"{path}, row {number}"
    try:
        fields = _columns(row)
        lines: list[Line] = []
        for values in zip(*(fields[name] for name in FIELDS), strict=True):
            place = f"{path}, row {number}, line {len(lines) + 1}"
            lines.append(_line(dict(zip(FIELDS, values, strict=True)), len(lines)))
    except StoryError as error:
        raise StoryError(f"{place}: {error}") from None
    return Story(task, tuple(lines), str(path), number)


def _columns(row: Any) -> Mapping[str, Sequence[Any]]:
    """Return the items of each field, whether a row has lists in a struct or structs in a list."""
    if isinstance(row, list) and all(isinstance(line, dict) for line in row):
        row = {name: [line.get(name) for line in row] for name in FIELDS}
    if not isinstance(row, dict) or not {*FIELDS} <= {*row}:
        found = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise StoryError(f"story has {found}; allowed are the fields {', '.join(FIELDS)}")
    lengths = {name: len(row[name] or ()) for name in FIELDS}
    if len({*lengths.values()}) > 1:
        raise StoryError(f"its fields have {lengths} items; allowed is one for each line")
    if not lengths["id"]:
        raise StoryError("has no line; a story has at least one")
    return row


def _line(line: Mapping[str, Any], num_before: int) -> Line:
    if str(line["id"]) != str(num_before + 1):
        raise StoryError(f"has the id {line['id']!r}; allowed is {num_before + 1}")
    text = str(line["text"] or "")
    if line["type"] in _SENTENCE:
        return make_sentence(text)
    if line["type"] not in _QUESTION:
        raise StoryError(f"is of type {line['type']!r}; allowed is 0, a sentence, or 1, a question")
    support = [str(each) for each in line["supporting_ids"] or ()]
    return make_question(text, str(line["answer"] or ""), support, num_before)
