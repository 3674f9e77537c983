"""Stories: their lines and words, strict reading of files, and the vocabulary."""

import re

import numpy as np
import pytest

from implicit_models.problems.catbabi.stories.reading import StoryError, read_file, read_folder
from implicit_models.problems.catbabi.stories.story import (
    TASKS,
    Distances,
    Question,
    Sentence,
    Story,
    render,
)
from implicit_models.problems.catbabi.stories.vocabulary import EOS, PAD, Vocabulary, vocabulary_of

MARY = Sentence(("Mary", "moved", "to", "the", "office"))
JOHN = Sentence(("John", "got", "the", "milk", "there"))
WHERE = Question(("Where", "is", "Mary"), "office", (1,))
WHAT = Question(("What", "is", "John", "carrying"), "apple,Milk", (2, 1))
STORY = Story(8, (MARY, JOHN, WHERE, JOHN, WHAT))
TEXT = (
    "1 Mary moved to the office.\n2 John got the milk there.\n3 Where is Mary? \toffice\t1\n"
    "4 John got the milk there.\n5 What is John carrying? \tapple,Milk\t2 1\n"
)


def test_lines_and_words():
    assert STORY.text() == TEXT
    words = " ".join(STORY.words())
    assert words == (
        "mary moved to the office . john got the milk there . where is mary ? office "
        "john got the milk there . what is john carrying ? apple,milk"
    )
    assert STORY.questions() == [(3, WHERE), (5, WHAT)]


def test_distances_are_between_the_ids_of_lines():
    assert STORY.distances() == [Distances(2, 2), Distances(3, 4)]


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "qa8_train.txt"
    path.write_text(render([STORY, STORY]))
    stories = read_file(path, 8)
    assert stories == [STORY, STORY]
    assert render(stories) == path.read_text()
    assert [story.first_line for story in stories] == [1, 6]
    assert stories[1].place(3) == f"{path}:8"
    assert STORY.place(3) == "line 3 of a story of task 8"


@pytest.mark.parametrize("name", ["qa8_test.txt", "qa8_lists-sets_test.txt"])
def test_names_of_files(tmp_path, name):
    (tmp_path / name).write_text(TEXT)
    assert read_folder(tmp_path, "test", [8]) == {8: [STORY]}


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_line_ends_and_spaces_do_not_matter(tmp_path, end):
    path = tmp_path / "file.txt"
    path.write_text("1 Mary moved to the office.\n2 Where is Mary?\toffice \t1" + end, newline="")
    assert read_file(path, 1) == [Story(1, (MARY, WHERE))]


FACT = "1 Mary moved to the office.\n"


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (FACT + "2 Where is Mary?\n", 2, "has no answer"),
        (FACT + "2 Where is Mary?\t \t1\n", 2, "has no answer"),
        (FACT + "2 Where is Mary?\toffice hallway\t1\n", 2, "has 2 answers, 'office hallway'"),
        (FACT + "2 Where is Mary?\toffice\thallway\t1\n", 2, "has 3 fields"),
        (FACT + "2 Where is Mary?\toffice\n", 2, "has 1 fields"),
        (FACT + "2 Where is Mary?\toffice\t\n", 2, "names no supporting fact"),
        (FACT + "2 Where is Mary?\toffice\t2\n", 2, "names the supporting fact '2'; .* 1 to 1"),
        (FACT + "2 Where is Mary?\toffice\t0\n", 2, "names the supporting fact '0'"),
        (FACT + "2 Where is Mary?\toffice\tone\n", 2, "names the supporting fact 'one'"),
        (FACT + "2 Where is Mary\toffice\t1\n", 2, r"is 'Where is Mary'; .* ends with '\?'"),
        (FACT + "3 John is tired.\n", 2, "has the id 3; allowed is 2, or 1 for a new story"),
        (FACT + "2 John is tired.\n2 John is tired.\n", 3, "has the id 2; allowed is 3, or 1"),
        ("2 John is tired.\n", 1, "has the id 2; allowed is 1$"),
        (FACT + "two John is tired.\n", 2, "is 'two John is tired.'; allowed is an id"),
        (FACT + "2\n", 2, "is '2'; allowed is an id"),
        (FACT + "\n1 John is tired.\n", 2, "is ''; allowed is an id"),
        (FACT + "2 John is tired\n", 2, "is 'John is tired'; .* ends with '.'"),
        (FACT + "2 John is. tired.\n", 2, "is .* has no other '.'"),
        (FACT + "2 .\n", 2, "is '.'; allowed is a sentence"),
        (FACT.encode() + b"2 John is tir\xe9d.\n", 2, r"is not UTF-8 \(byte 14 of the line\)"),
    ],
)  # fmt: skip
def test_what_is_no_story_is_named_with_its_line(tmp_path, content, line, says):
    path = tmp_path / "qa1_train.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(StoryError, match=rf"^{re.escape(str(path))}:{line}: {says}"):
        read_file(path, 1)


def test_empty_and_missing_files(tmp_path):
    path = tmp_path / "qa1_train.txt"
    with pytest.raises(StoryError, match=rf"^{re.escape(str(path))}: no such file"):
        read_file(path, 1)
    path.write_text("")
    with pytest.raises(StoryError, match=rf"^{re.escape(str(path))}: is empty"):
        read_file(path, 1)


def test_missing_tasks_are_named(tmp_path):
    for task in TASKS:
        if task not in (3, 7):
            (tmp_path / f"qa{task}_train.txt").write_text(TEXT)
    with pytest.raises(StoryError, match="for tasks 3, 7; .* qa3_train.txt or qa3_.*_train.txt"):
        read_folder(tmp_path, "train")
    found = read_folder(tmp_path, "train", {*TASKS} - {3, 7})
    assert [*found] == [task for task in TASKS if task not in (3, 7)]
    assert {story.task for story in found[20]} == {20}
    with pytest.raises(StoryError, match="for tasks 1, "):
        read_folder(tmp_path, "test")


def test_two_files_of_a_task(tmp_path):
    for name in ("qa1_a_train.txt", "qa1_b_train.txt"):
        (tmp_path / name).write_text(TEXT)
    with pytest.raises(StoryError, match="has qa1_a_train.txt and qa1_b_train.txt; allowed is one"):
        read_folder(tmp_path, "train", [1])


@pytest.mark.parametrize(
    ("split", "tasks", "says"),
    [
        ("validation", None, "split is 'validation'; allowed is train, valid, test"),
        ("train", [0, 4, 21], r"tasks has \[0, 21\]; allowed are numbers from 1 to 20"),
    ],
)
def test_what_is_asked_for_is_checked(tmp_path, split, tasks, says):
    with pytest.raises(StoryError, match=says):
        read_folder(tmp_path, split, tasks)


def test_missing_folder(tmp_path):
    with pytest.raises(StoryError, match=r"en: no such folder; .* as en-valid-10k"):
        read_folder(tmp_path / "en", "train")


def test_vocabulary():
    vocabulary = vocabulary_of([STORY])
    assert vocabulary.words[:2] == (PAD, EOS)
    assert list(vocabulary.words[2:]) == sorted({*STORY.words()})
    numbers = vocabulary.encode(STORY)
    assert numbers.dtype == np.int32
    assert [vocabulary.words[number] for number in numbers] == STORY.words()
    other = Story(1, (JOHN, MARY))
    assert vocabulary_of([other, STORY]) == vocabulary_of([STORY, other]) == vocabulary


def test_unknown_word(tmp_path):
    path = tmp_path / "qa8_test.txt"
    path.write_text(TEXT)
    (story,) = read_file(path, 8)
    vocabulary = Vocabulary(tuple(w for w in vocabulary_of([STORY]).words if w != "apple,milk"))
    with pytest.raises(StoryError, match=rf"^{re.escape(str(path))}:5: has the word 'apple,milk'"):
        vocabulary.encode(story)
    with pytest.raises(StoryError, match="^line 5 of a story of task 8: has the word"):
        vocabulary.encode(STORY)
