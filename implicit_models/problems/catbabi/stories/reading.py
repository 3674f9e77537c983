"""Files of bAbI, read strictly.

A folder such as ``en-valid-10k`` of the release 1.2 holds ``qa1_train.txt``, ``qa1_valid.txt``,
``qa1_test.txt`` and the same of the tasks 2 to 20; folders without validation files call them
``qa1_single-supporting-fact_train.txt`` ..., which is understood as well.
"""

import functools
from collections.abc import Collection
from pathlib import Path

from implicit_models.bars import bar
from implicit_models.problems.catbabi.stories.story import TASKS, Line, Question, Sentence, Story

SPLITS = ("train", "valid", "test")

_MAX_DIGITS = 10  # of an id


class StoryError(ValueError):
    """A file of stories is missing or not in the form of bAbI, or has a word that is not known."""


def read_folder(
    folder: Path, split: str, tasks: Collection[int] | None = None
) -> dict[int, list[Story]]:
    """Read the stories of a split, of all twenty tasks or of those asked for.

    Raises
    ------
    StoryError
        Naming the tasks whose file is missing, or file and line of what is no story.
    """
    paths, stories = find_files(folder, split, tasks), dict[int, list[Story]]()
    with bar(len(paths), f"stories of {Path(folder).name}", "task") as counted:
        for task, path in paths.items():
            stories[task] = read_file(path, task)
            counted.update()
    return stories


def find_files(folder: Path, split: str, tasks: Collection[int] | None = None) -> dict[int, Path]:
    """Return the file of each task, of all twenty or of those asked for.

    Raises
    ------
    StoryError
        Naming the tasks whose file is missing.
    """
    folder = Path(folder)
    wanted = check_wanted(folder, split, tasks)
    paths = {task: _find(folder, task, split) for task in wanted}
    missing = [task for task in wanted if paths[task] is None]
    if missing:
        names = " or ".join(_names(missing[0], split))
        raise StoryError(
            f"{folder}: has no file of {split} stories for {_of_tasks(missing)}; for task "
            f"{missing[0]} it may be called {names}; tasks may also be left out"
        )
    return {task: path for task, path in paths.items() if path is not None}


def read_file(path: Path, task: int) -> list[Story]:
    """Read the stories of a file.

    Raises
    ------
    StoryError
        Naming file and line, what was found and what is allowed.
    """
    path = Path(path)
    if not path.is_file():
        raise StoryError(f"{path}: no such file; allowed is a file of bAbI's lines")
    stories: list[Story] = []
    lines: list[Line] = []
    first = 1
    for number, raw in enumerate(path.read_bytes().splitlines(), 1):
        try:
            identifier, text = _numbered(_decoded(raw))
            if identifier == 1 and lines:
                stories.append(Story(task, tuple(lines), str(path), first))
                lines, first = [], number
            if identifier != len(lines) + 1:
                raise StoryError(
                    f"has the id {identifier}; allowed is "
                    + (f"{len(lines) + 1}, or 1 for a new story" if lines else "1")
                )
            lines.append(_line(text, len(lines)))
        except StoryError as error:
            raise StoryError(f"{path}:{number}: {error}") from None
    if not lines:
        raise StoryError(f"{path}: is empty; a file has at least one story")
    return [*stories, Story(task, tuple(lines), str(path), first)]


@functools.lru_cache(maxsize=2**16)
def make_sentence(text: str) -> Sentence:
    """Return a sentence of its text.

    Raises
    ------
    StoryError
        If it does not end with a full stop, its only one; where that was, the caller knows.
    """
    return Sentence(_words(text, ".", "a sentence"))


def make_question(text: str, answer: str, support: Collection[str], num_before: int) -> Question:
    """Return a question of its text, its answer and the ids of its supporting facts.

    Parameters
    ----------
    num_before
        How many lines the story has before it; supporting facts are among them.

    Raises
    ------
    StoryError
        If there is no answer, more than one word, or an id that is none of an earlier line.
    """
    words = _words(text, "?", "a question")
    found = answer.split()
    if len(found) != 1:
        what = f"{len(found)} answers, {answer.strip()!r}" if found else "no answer"
        raise StoryError(f"has {what}; allowed is one word, such as kitchen or n,w")
    if not support:
        raise StoryError("names no supporting fact; allowed are ids of earlier lines")
    for each in support:
        if not _is_number(each) or not 1 <= int(each) <= num_before:
            raise StoryError(
                f"names the supporting fact {each!r}; allowed are the ids of earlier lines, "
                f"1 to {num_before}"
            )
    return Question(words, found[0], tuple(int(each) for each in support))


def check_wanted(folder: Path, split: str, tasks: Collection[int] | None) -> list[int]:
    """Return the tasks asked for in their order, after checking folder, split and tasks.

    Raises
    ------
    StoryError
        If the folder is not there, the split is unknown or a task is none of bAbI's.
    """
    if split not in SPLITS:
        raise StoryError(f"split is {split!r}; allowed is {', '.join(SPLITS)}")
    unknown = [] if tasks is None else sorted({*tasks} - {*TASKS})
    if unknown:
        raise StoryError(f"tasks has {unknown}; allowed are numbers from 1 to {len(TASKS)}")
    if not folder.is_dir():
        raise StoryError(f"{folder}: no such folder; allowed is one of bAbI's, as en-valid-10k")
    return list(TASKS) if tasks is None else sorted({*tasks})


def _names(task: int, split: str) -> tuple[str, str]:
    return f"qa{task}_{split}.txt", f"qa{task}_*_{split}.txt"


def _find(folder: Path, task: int, split: str) -> Path | None:
    usual, others = _names(task, split)
    if (folder / usual).is_file():
        return folder / usual
    found = sorted(folder.glob(others))
    if len(found) > 1:
        raise StoryError(
            f"{folder}: has {' and '.join(path.name for path in found)}; allowed is one file for "
            f"task {task}, or {usual}"
        )
    return found[0] if found else None


def _of_tasks(tasks: list[int]) -> str:
    return f"task{'s' * (len(tasks) > 1)} {', '.join(map(str, tasks))}"


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise StoryError(
            f"is not UTF-8 (byte {error.start + 1} of the line); convert the file, for example "
            "with iconv -t utf-8"
        ) from None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS


def _numbered(line: str) -> tuple[int, str]:
    identifier, _, text = line.partition(" ")
    if not _is_number(identifier) or not text.strip():
        raise StoryError(f"is {line[:60]!r}; allowed is an id, a space and a text")
    return int(identifier), text


def _line(text: str, num_before: int) -> Line:
    question, *others = text.split("\t")
    if not others:
        if question.rstrip().endswith("?"):
            raise StoryError(
                "has no answer; allowed is a question, a tab, its answer, a tab and the ids of "
                "its supporting facts"
            )
        return make_sentence(question)
    if len(others) != 2:
        raise StoryError(
            f"has {len(others)} fields after the question; allowed are two after tabs, its answer "
            "and the ids of its supporting facts"
        )
    answer, support = others
    return make_question(question, answer, support.split(), num_before)


def _words(text: str, end: str, what: str) -> tuple[str, ...]:
    text = text.strip()
    inner = text[:-1]
    words = tuple(inner.split())
    if not text.endswith(end) or not words or "." in inner or "?" in inner:
        raise StoryError(
            f"is {text[:60]!r}; allowed is {what} that ends with {end!r} and has no other '.' "
            "or '?'"
        )
    return words
