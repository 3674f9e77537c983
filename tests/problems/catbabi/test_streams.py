"""Streams of stories: what is written, opened, and cut into sequences."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from implicit_models.parameters import ParameterError
from implicit_models.problems.catbabi.checks import missing, tokens_at_most
from implicit_models.problems.catbabi.data import interface
from implicit_models.problems.catbabi.data.streams import (
    EOS,
    IGNORED,
    Cut,
    Stream,
    StreamError,
    open_streams,
)
from implicit_models.problems.catbabi.data.words import WordsError, check_words
from implicit_models.problems.catbabi.generator.families import generate
from implicit_models.problems.catbabi.parameters import (
    TASKS,
    FilesParameters,
    GeneratedParameters,
    check_carry,
    vocabulary_size,
)
from implicit_models.problems.catbabi.stories.reading import StoryError
from implicit_models.problems.catbabi.stories.story import render
from implicit_models.problems.catbabi.stories.words import WORDS

QUESTIONS = {"train": 40, "validation": 10, "test": 20}
PARAMETERS = GeneratedParameters(
    kind="catbabi",
    sequence_length=50,
    seed=3,
    num_questions=QUESTIONS,  # type: ignore[arg-type]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "stories"
    interface.prepare(PARAMETERS, path, path / "unfinished")
    return path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder as bAbI's, of two tasks."""
    for task in (1, 19):
        for number, split in enumerate(("train", "valid", "test")):
            path = tmp_path / f"qa{task}_{split}.txt"
            path.write_text(render(generate(task, 6 - number, 0, split)))
    return tmp_path


def of_files(folder: Path, **changes: Any) -> FilesParameters:
    values = {"kind": "catbabi", "source": str(folder), "tasks": [1, 19]} | changes
    return FilesParameters(sequence_length=20, seed=0, **values)


def test_all_stories_of_all_tasks_are_there_once(folder: Path) -> None:
    data = open_streams(folder)
    data.verify()
    assert data.vocabulary == ["<pad>", "<eos>", *WORDS]
    assert len(data.vocabulary) == vocabulary_size(PARAMETERS) == 180
    for name, split in data.splits.items():
        entry = data.metadata["splits"][name]
        assert set(entry["tasks"]) == set(map(str, TASKS))
        assert len(split.starts) == sum(each["stories"] for each in entry["tasks"].values())
        assert sum(each["words"] for each in entry["tasks"].values()) + len(split.starts) == len(
            split.tokens
        )
        read = sorted(
            " ".join(data.vocabulary[token] for token in story[1:])
            for story in np.split(split.tokens, split.starts[1:])
        )
        expected = []
        for task in TASKS:
            count, file = entry["tasks"][str(task)]["stories"], {"validation": "valid"}
            stories = generate(task, count, PARAMETERS.seed, file.get(name, name))
            expected += [" ".join(story.words()) for story in stories]
        assert read == sorted(expected)


def test_questions_stand_where_the_stream_asks(folder: Path) -> None:
    data = open_streams(folder)
    mark = data.vocabulary.index("?")
    for name, split in data.splits.items():
        assert np.array_equal(split.questions[:, 0], np.flatnonzero(split.tokens == mark))
        tasks = split.questions[:, 1]
        for task, entry in data.metadata["splits"][name]["tasks"].items():
            assert (tasks == int(task)).sum() == entry["questions"]
        assert (split.questions[:, 2] >= 1).all()
        assert (split.questions[:, 2] <= split.questions[:, 3]).all()


def test_the_order_is_the_seeds_and_mixes_the_tasks(folder: Path, tmp_path: Path) -> None:
    first = open_streams(folder).splits["train"]
    interface.prepare(PARAMETERS, tmp_path / "again", tmp_path)
    again = open_streams(tmp_path / "again").splits["train"]
    assert np.array_equal(first.tokens, again.tokens)
    interface.prepare(PARAMETERS.replace(seed=4), tmp_path / "other", tmp_path)
    assert not np.array_equal(
        first.tokens[:500], open_streams(tmp_path / "other").splits["train"].tokens[:500]
    )
    assert len(set(first.questions[:100, 1])) > 8


def test_sequences_go_on_from_one_another_and_leave_no_token_out() -> None:
    tokens = np.arange(2, 25)
    cut = Cut.of(Stream(tokens, np.zeros((0, 4))), 5, None)
    assert cut.inputs.shape == (5, 5) and len(cut.labels) == 5
    rows = np.arange(5)
    whole = cut.inputs[rows, :5].ravel()
    assert np.array_equal(whole, np.append(tokens, tokens[:2]))
    assert np.array_equal(cut.labels[rows].ravel(), np.append(tokens[1:], tokens[:3]))
    assert np.array_equal(cut.inputs[np.array([4, 1]), :2], [[22, 23], [7, 8]])
    assert np.array_equal(cut.inputs[1:3], cut.inputs[np.array([1, 2])])


def test_answers_alone_or_all_tokens_are_labels(folder: Path) -> None:
    for objective in ("answers", "all"):
        parameters = PARAMETERS.replace(objective=objective)
        data = interface.open_training(folder, parameters)
        inputs, labels = (
            part[np.arange(len(data.train.inputs))].ravel()
            for part in (data.train.inputs, data.train.labels)
        )
        following = np.append(inputs[1:], labels[-1])
        asked = inputs == open_streams(folder).vocabulary.index("?")
        assert asked.sum() >= 20 * 30
        assert np.array_equal(labels[asked], following[asked])
        if objective == "all":
            assert np.array_equal(labels[:-1], following[:-1])
        else:
            assert (labels[~asked] == IGNORED).all()


def test_bAbIs_own_files_are_read_and_watched(files: Path, tmp_path: Path) -> None:
    path = tmp_path / "prepared"
    interface.prepare(of_files(files), path, tmp_path)
    data = open_streams(path)
    assert data.metadata["source"] == "files"
    assert {t: e["stories"] for t, e in data.metadata["splits"]["train"]["tasks"].items()} == {
        "1": 6,
        "19": 6,
    }
    assert data.vocabulary[:2] == ["<pad>", "<eos>"] and data.vocabulary[2:] == list(WORDS)
    own = files / "qa1_train.txt"
    own.write_text(own.read_text().replace("Mary", "Zoe"))
    interface.prepare(of_files(files), path, tmp_path)
    assert open_streams(path).vocabulary[2:] == [*WORDS, "zoe"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "qa19_valid.txt").unlink(), "no file of valid stories for task 19"),
        (
            lambda f: (f / "qa1_test.txt").write_text("1 Mary went.\n2 Where is Mary?\n"),
            r"qa1_test.txt:2: has no answer",
        ),
        (
            lambda f: (f / "qa1_test.txt").write_text("1 Mary went.\n3 Mary went.\n"),
            r"qa1_test.txt:2: has the id 3; allowed is 2, or 1",
        ),
    ],
)
def test_files_that_are_no_stories_are_named(
    spoil: Any, message: str, files: Path, tmp_path: Path
) -> None:
    interface.prepare(of_files(files), tmp_path / "prepared", tmp_path)
    before = (tmp_path / "prepared" / "metadata.json").read_text()
    spoil(files)
    with pytest.raises(StoryError, match=message):
        interface.prepare(of_files(files), tmp_path / "prepared", tmp_path)
    assert (tmp_path / "prepared" / "metadata.json").read_text() == before
    assert [each for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_what_is_missing_is_told_before_anything_runs(files: Path) -> None:
    assert not list(missing("corpora.babi", of_files(files)))
    assert not list(missing("datasets.stories", PARAMETERS))
    lines = list(missing("corpora.babi", of_files(files, tasks=[1, 2, 3])))
    assert len(lines) == 3 and "stories for tasks 2, 3" in lines[0]
    (line,) = missing("corpora.babi", of_files(files / "none"))
    assert line.startswith("corpora.babi.source: ") and "no such folder" in line


def test_no_split_has_more_tokens_than_the_check_allows(files: Path, tmp_path: Path) -> None:
    parameters = of_files(files)
    interface.prepare(parameters, tmp_path / "prepared", tmp_path)
    for split, most in tokens_at_most(parameters).items():
        found = open_streams(tmp_path / "prepared", [split]).splits[split]
        rows = Cut.of(found, parameters.sequence_length, None).inputs
        # beyond the tokens: the ids of supporting facts, two of each question, and a row's end
        slack = 2 * len(found.questions) + parameters.sequence_length
        assert rows.shape[0] * rows.shape[1] + 1 <= most <= len(found.tokens) + slack
    assert set(tokens_at_most(parameters)) == {"train", "validation", "test"}
    assert tokens_at_most(of_files(files / "none")) == {}


def test_a_stream_is_not_cut_where_it_goes_on() -> None:
    check_carry("datasets.stories", PARAMETERS, 50)
    with pytest.raises(ParameterError, match="lengths.minimum = 20; allowed is datasets.stories"):
        check_carry("datasets.stories", PARAMETERS, 20)


@pytest.mark.parametrize("kind", ["tokens", "questions"])
def test_damaged_streams_are_named(kind: str, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "stories"
    shutil.copytree(folder, copy)
    path = copy / "test" / f"{kind}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(StreamError, match=f"{kind}.npy: the content has changed; `dvc repro"):
        open_streams(copy, ["test"]).verify()
    np.save(path, np.load(path)[:-1])
    with pytest.raises(StreamError, match="the shape is"):
        open_streams(copy, ["test"])
    path.unlink()
    with pytest.raises(StreamError, match="no such file"):
        open_streams(copy, ["test"])
    (copy / "metadata.json").unlink()
    with pytest.raises(StreamError, match="is missing, the data set is incomplete"):
        open_streams(copy)


def test_a_model_is_saved_with_its_words_and_knows_others(folder: Path, tmp_path: Path) -> None:
    data = interface.open_training(folder, PARAMETERS)
    data.save_beside(tmp_path)
    data.check_model(tmp_path)
    data.check_model(tmp_path / "without")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    vocabulary = open_streams(folder).vocabulary
    text = "Mary went to the kitchen . where is mary ?"
    assert tokenizer(text)["input_ids"] == [vocabulary.index(w) for w in text.lower().split()]
    assert tokenizer.eos_token_id == data.end_of_text == EOS
    with pytest.raises(WordsError, match="has 180 words, and they are not the 2 of"):
        check_words(tmp_path, ["a", "b"], folder)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["type"] == "WordLevel"
    for damaged in (b"", b"\xff", b"[]", b'{"model": {}}'):
        (tmp_path / "tokenizer.json").write_bytes(damaged)
        with pytest.raises(WordsError, match=r"tokenizer\.json is damaged \(.*checkout --force`"):
            check_words(tmp_path, vocabulary, folder)
