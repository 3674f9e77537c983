"""How many stories, and tokens, a data set will have, before it is prepared."""

import functools
from pathlib import Path

from implicit_models.problems.catbabi.generator.families import generate, num_stories
from implicit_models.problems.catbabi.parameters import (
    FILES,
    CatbabiParameters,
    FilesParameters,
    GeneratedParameters,
)
from implicit_models.problems.catbabi.stories.reading import StoryError, find_files

MOST_BYTES = 2_000_000
"""Of files that are read before a run, in a second; the preparation reads all."""

_MOST_TOKENS = 400  # of a question with its answer and its facts
_COUNTED_QUESTIONS = 5_000  # of a split, whose stories are generated in some tenths of a second


def tokens_at_most(data: CatbabiParameters) -> dict[str, int]:
    """Return how many tokens each split has at most, with a row to end it with.

    It is their number where the stories are few. Of a split of many files there is nothing.
    """
    if isinstance(data, GeneratedParameters):
        found = {split: _generated_tokens(data, split) for split in FILES}
    else:
        assert isinstance(data, FilesParameters)
        found = {split: _file_tokens(data, split) for split in FILES}
    return {split: n + data.sequence_length for split, n in found.items() if n is not None}


def stories_at_most(data: CatbabiParameters, split: str) -> int | None:
    """Return how many stories a split has; None where its files are many, or not there."""
    if isinstance(data, GeneratedParameters):
        asked = getattr(data.num_questions, split)
        return sum(num_stories(task, asked) for task in data.tasks)
    assert isinstance(data, FilesParameters)
    lines = _lines(data, split)
    return None if lines is None else sum(map(_begins, lines))


def _generated_tokens(data: GeneratedParameters, split: str) -> int:
    asked = getattr(data.num_questions, split)
    if asked * len(data.tasks) > _COUNTED_QUESTIONS:
        return _MOST_TOKENS * asked * len(data.tasks)
    return sum(_words_of_task(task, asked, data.seed, FILES[split]) for task in data.tasks)


@functools.cache
def _words_of_task(task: int, asked: int, seed: int, split: str) -> int:
    stories = generate(task, num_stories(task, asked), seed, split)
    return sum(1 + len(story.words()) for story in stories)


def _file_tokens(data: FilesParameters, split: str) -> int | None:
    lines = _lines(data, split)
    # An id stands for the full stop or the question mark, and one that is 1 for <eos>, too.
    return None if lines is None else sum(len(line) + _begins(line) for line in lines)


def _lines(data: FilesParameters, split: str) -> list[list[bytes]] | None:
    try:
        paths = find_files(Path(data.source), FILES[split], data.tasks).values()
    except StoryError:  # which the check of files tells
        return None
    if sum(path.stat().st_size for path in paths) > MOST_BYTES:
        return None
    return [line.split() for path in paths for line in path.read_bytes().splitlines()]


def _begins(line: list[bytes]) -> bool:
    return line[:1] == [b"1"]
