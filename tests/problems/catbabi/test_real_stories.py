"""The real files of bAbI: what they have, and that generated stories mean and say the same."""

import re
from itertools import chain
from pathlib import Path

import pytest

from implicit_models.problems.catbabi.generator.families import FAMILIES, generate
from implicit_models.problems.catbabi.stories.reading import SPLITS, read_folder
from implicit_models.problems.catbabi.stories.story import TASKS, render
from implicit_models.problems.catbabi.stories.vocabulary import SPECIAL, vocabulary_of
from tests.problems.catbabi import solver

REAL = Path(__file__).parents[3] / ".." / "shared" / "data" / "babi"
SMALL, FULL = "en-valid", "en-valid-10k"

pytestmark = pytest.mark.skipif(
    not REAL.is_dir(), reason="the real stories of ../shared/data are not there"
)

STORIES = {4: (9000, 1000, 1000), 16: (9000, 1000, 1000), 19: (9000, 1000, 1000)}
STORIES |= {15: (2250, 250, 250), 17: (1125, 125, 125), 18: (1781, 197, 199), 20: (840, 93, 93)}
QUESTIONS = {18: (8996, 1004, 1000), 20: (9002, 998, 1000)}


def read(folder: str, split: str):
    return read_folder(
        REAL / folder, split, [t for t in TASKS if (REAL / folder / name(t, split)).is_file()]
    )


def name(task: int, split: str) -> str:
    return f"qa{task}_{split}.txt"


@pytest.fixture(scope="module")
def small():
    return {split: read_folder(REAL / SMALL, split) for split in SPLITS}


@pytest.fixture(scope="module")
def full():
    return {split: read(FULL, split) for split in SPLITS}


@pytest.mark.slow
def test_counts(full):
    for index, split in enumerate(SPLITS):
        assert {*TASKS} - {*full[split]} == ({3} if split == "train" else set())
        for task, stories in full[split].items():
            assert len(stories) == STORIES.get(task, (1800, 200, 200))[index]
            questions = sum(len(story.questions()) for story in stories)
            assert questions == QUESTIONS.get(task, (9000, 1000, 1000))[index]


@pytest.mark.slow
def test_lines(small, full):
    table = re.findall(r"^\| (en\S+) \| \d+ \| (\d+) \|", (REAL / "README.md").read_text(), re.M)
    assert len(table) == 119
    for file, num_lines in table:
        folder, task, split = re.fullmatch(r"(.*)/qa(\d+)_(\w+)\.txt", file).groups()
        stories = {SMALL: small, FULL: full}[folder][split][int(task)]
        assert sum(len(story.lines) for story in stories) == int(num_lines), file


@pytest.mark.parametrize("split", SPLITS)
def test_what_is_read_is_written(small, split):
    for task, stories in small[split].items():
        written = (REAL / SMALL / name(task, split)).read_text()
        assert render(stories).replace("? \t", "?\t") == written.replace("? \t", "?\t")


@pytest.mark.slow
def test_vocabulary(small, full):
    found = vocabulary_of(every(small, full))
    assert len(found) == len(SPECIAL) + 178
    assert {*vocabulary_of(every(small)).words} < {*found.words}


def test_the_words_are_the_same(small):
    """But for some lists of things, which are seldom."""
    real = {*vocabulary_of(every(small)).words}
    own = {*vocabulary_of(story for task in TASKS for story in generate(task, 150, 1)).words}
    assert all(word.count(",") == 2 for word in own ^ real)


def every(*folders):
    """Every story of some folders."""
    tasks = chain.from_iterable(
        stories.values() for splits in folders for stories in splits.values()
    )
    return chain.from_iterable(tasks)


@pytest.mark.parametrize("task", TASKS)
def test_the_solver_answers_real_questions(small, task):
    hits = [hit for story in small["test"][task] for hit in solver.score(story.words())]
    # "What did Bill give to Fred?" where he gave him two things: the real answer is either.
    assert sum(hits) / len(hits) >= (0.995 if task == 5 else 1)


@pytest.mark.slow
def test_a_full_training_is_as_large(full):
    for task, stories in full["train"].items():
        assert FAMILIES[task].num_stories == len(stories)
