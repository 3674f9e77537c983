"""Strings of a formal language: what is written, opened and learned from, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from implicit_models.parameters import ParameterError
from implicit_models.problems.formal_language import checks
from implicit_models.problems.formal_language.data import interface
from implicit_models.problems.formal_language.data.language import IGNORED, Strings
from implicit_models.problems.formal_language.data.regular import Parity
from implicit_models.problems.formal_language.data.splits import StringsError, open_splits
from implicit_models.problems.formal_language.parameters import (
    FormalLanguageEvaluationParameters,
    FormalLanguageParameters,
    FormalLanguageSweepParameters,
    check_carry,
    check_evaluation,
    check_sweep,
    check_training,
    vocabulary_size,
)

SIZES: dict[str, Any] = {
    "kind": "formal_language",
    "seed": 3,
    "train": {"num_sequences": 40, "shortest": 4, "longest": 9},
    "validation": {"num_sequences": 20, "shortest": 4, "longest": 9},
    "test": {"num_sequences": 12, "shortest": 10, "longest": 30},
}


def language(name: str, **changes: Any) -> FormalLanguageParameters:
    return FormalLanguageParameters(**SIZES | {"language": name} | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "cups"
    interface.prepare(language("swapped_cups", objective="all"), path, path / "unfinished")
    return path


def test_splits_have_the_lengths_that_are_asked_for(tmp_path: Path) -> None:
    interface.prepare(language("reverse_string"), tmp_path / "data", tmp_path)
    data = open_splits(tmp_path / "data")
    for name in ("train", "validation", "test"):
        split, sizes = data.splits[name], SIZES[name]
        assert len(split.inputs) == sizes["num_sequences"]
        assert split.lengths.min() >= sizes["shortest"] and split.lengths.max() <= sizes["longest"]
        assert np.array_equal(split.num_tokens, 2 * split.lengths)
        assert ((split.labels != IGNORED).sum(axis=1) == split.lengths).all()
    assert len(np.unique(data.splits["test"].lengths)) > 5


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [("inputs", -1, "token -1"), ("inputs", 2, "token 2"), ("labels", 300, "label 300")],
)
def test_a_language_that_draws_what_it_has_not_is_told(
    kind: str, wrong: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Parity.draw

    def mistaken(self: Parity, *arguments: Any) -> Strings:
        drawn = draw(self, *arguments)
        getattr(drawn, kind)[0, 0] = wrong
        return drawn

    monkeypatch.setattr(Parity, "draw", mistaken)
    with pytest.raises(StringsError, match=rf"Parity\.draw gives the {said} in a .* are 0 to 1, "):
        interface.prepare(language("parity"), tmp_path / "data", tmp_path)
    assert not (tmp_path / "data" / "metadata.json").exists()


def test_a_language_of_more_tokens_than_are_kept_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Parity, "tokens", tuple(map(str, range(128))))
    interface.prepare(language("parity"), tmp_path / "data", tmp_path)
    monkeypatch.setattr(Parity, "tokens", tuple(map(str, range(129))))
    with pytest.raises(StringsError, match="Parity has 129 tokens; at most 128 are supported"):
        interface.prepare(language("parity"), tmp_path / "more", tmp_path)


def test_the_same_seed_gives_the_same_and_another_does_not(tmp_path: Path) -> None:
    digests = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        interface.prepare(language("parity", seed=seed), tmp_path / name, tmp_path)
        metadata = open_splits(tmp_path / name).metadata
        digests.append(metadata["splits"]["train"]["inputs_digest"])
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("answers", ["last", "every"])
def test_a_string_is_asked_at_its_end_or_all_along(answers: str, tmp_path: Path) -> None:
    interface.prepare(language("parity", answers=answers), tmp_path / "data", tmp_path)
    split = open_splits(tmp_path / "data").splits["train"]
    asked = split.labels != IGNORED
    if answers == "every":
        assert np.array_equal(asked.sum(axis=1), split.num_tokens)
    else:
        assert (asked.sum(axis=1) == 1).all()
        assert np.array_equal(asked.argmax(axis=1), split.num_tokens - 1)


def test_all_tokens_are_learned_as_the_next_ones(folder: Path) -> None:
    parameters = language("swapped_cups", objective="all")
    training = interface.open_training(folder, parameters)
    assert training.label_alignment == "next_token"
    assert training.vocabulary_size == vocabulary_size(parameters) == 15
    split = open_splits(folder).splits["train"]
    labels = training.train.labels[np.arange(len(split.inputs)), :]
    for row, count in enumerate(split.num_tokens):
        assert np.array_equal(labels[row, : count - 1], split.inputs[row, 1:count])
        assert (labels[row, count - 1 :] == IGNORED).all()
    asked = split.labels != IGNORED
    assert np.array_equal(labels[asked], split.labels[asked])
    assert np.array_equal(training.train.labels[3:5, :10], labels[3:5, :10])


def test_tests_of_flip_flops_ignore_as_often_as_each_says(tmp_path: Path) -> None:
    test = SIZES["test"] | {"num_sequences": 64, "ignore_probabilities": [0.98, 0.1]}
    parameters = language("flip_flop", test=test)
    names = ["test_ignoring_98_percent", "test_ignoring_10_percent"]
    assert parameters.test_names == names
    interface.prepare(parameters, tmp_path / "data", tmp_path)
    data = open_splits(tmp_path / "data", names)
    ignoring = data.tokens.index("ignore")
    sparse, dense = ((data.splits[name].inputs == ignoring).sum() for name in names)
    assert sparse > 5 * dense


@pytest.mark.parametrize("name", ["swapped_cups", "variable_trace"])
def test_tests_of_traces_ask_as_often_as_each_says(name: str, tmp_path: Path) -> None:
    """Where nothing asks but the end, no answer is told on the way there."""
    parameters = language(name, test=SIZES["test"] | {"ask_probabilities": [0.25, 0]})
    names = ["test_asking_25_percent", "test_asking_0_percent"]
    assert parameters.test_names == names
    interface.prepare(parameters, tmp_path / "data", tmp_path)
    data = open_splits(tmp_path / "data", names)
    often, once = ((data.splits[each].labels != IGNORED).sum(axis=1) for each in names)
    assert (once == 1).all() and often.mean() > 2
    described = data.metadata["splits"]
    assert [described[each]["ask_probability"] for each in ("train", *names)] == [0.25, 0.25, 0]


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "metadata", "version"])
def test_damaged_strings_are_named(damage: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "cups")
    path = tmp_path / "cups" / "test" / "labels.npy"
    manifest = tmp_path / "cups" / "metadata.json"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-7])
    elif damage == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"\x05")
    elif damage == "missing":
        path.unlink()
    elif damage == "metadata":
        manifest.write_text(manifest.read_text().replace("swapped", "swopped"))
    else:
        manifest.write_text(json.dumps({"format_version": 0}))
    named = path.name if damage in ("truncated", "changed", "missing") else manifest.name
    with pytest.raises(StringsError, match=rf"{named}.*dvc repro prepare@cups"):
        open_splits(tmp_path / "cups").verify()


def test_a_folder_or_split_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StringsError, match=r"nowhere: no such folder.*prepare@nowhere"):
        open_splits(tmp_path / "nowhere")
    with pytest.raises(StringsError, match=r"no split 'tset'; there are .*test"):
        open_splits(folder, ["tset"])


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("parity", {"size": 3}, "size is not allowed; parity has none"),
        ("parity", {"ignore_probability": 0.5}, "ignore_probability is not allowed"),
        ("parity", {"objective": "all"}, "objective = 'all' is not allowed; allowed is 'answers'"),
        ("reverse_string", {"answers": "every"}, "answers = 'every' is not allowed; allowed is"),
        ("parity", {"test": SIZES["test"] | {"ignore_probabilities": [0.1]}}, "parity has none"),
        ("flip_flop", {"ask_probability": 0.5}, "ask_probability is not allowed; flip_flop has"),
        (
            "flip_flop",
            {"test": SIZES["test"] | {"ask_probabilities": [0]}},
            "test.ask_probabilities is not allowed; flip_flop has none: leave it out",
        ),
        ("swapped_cups", {"ask_probability": 1.0}, "ask_probability"),
        (
            "swapped_cups",
            {"test": SIZES["test"] | {"ask_probabilities": [0.5, 0.50000001]}},
            "test.ask_probabilities = [0.5, 0.50000001] is not allowed; allowed are numbers that",
        ),
        ("flip_flop", {"train": SIZES["train"] | {"shortest": 3}}, "allowed is at least 4"),
        ("parity", {"train": SIZES["train"] | {"shortest": 10}}, "at most longest, 9"),
        ("swapped_cups", {"size": 1}, "size"),
        (
            "flip_flop",
            {"test": SIZES["test"] | {"ignore_probabilities": [0.98, 0.98000001]}},
            "numbers that differ in six digits",
        ),
    ],
)
def test_wrong_parameters_are_a_line(name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises((ParameterError, ValueError)) as caught:
        language(name, **changes)
    assert said in str(caught.value)


def test_what_does_not_fit_is_known_before_anything_runs() -> None:
    data = language("variable_trace")
    assert check_training("datasets.x", data) == (21 + 9 * 9, "datasets.x.train.longest")
    with pytest.raises(ParameterError, match=r"the strings of datasets\.x stand alone"):
        check_carry("datasets.x", data, 4)
    sweep = FormalLanguageSweepParameters(
        length=9, num_sequences=20, self_iterations=(1,), tolerances=(0.1,)
    )
    check_evaluation("datasets.x", data, FormalLanguageEvaluationParameters())
    check_sweep("datasets.x", data, sweep)
    for change, said in (({"length": 3}, "at least"), ({"num_sequences": 21}, "at most 20")):
        with pytest.raises(ParameterError, match=f"allowed is {said}.*validation"):
            check_sweep("datasets.x", data, sweep.replace(**change))


def test_a_check_counts_the_strings_that_are_then_drawn(tmp_path: Path) -> None:
    data = language("parity")
    interface.prepare(data, tmp_path / "data", tmp_path)
    lengths = open_splits(tmp_path / "data").splits["validation"].lengths
    for length in range(4, 10):
        count = int((lengths <= length).sum())
        values: dict[str, Any] = {"length": length, "self_iterations": (1,), "tolerances": (0.1,)}
        if count:
            fits = FormalLanguageSweepParameters(num_sequences=count, **values)
            check_sweep("datasets.x", data, fits)
        with pytest.raises(ParameterError, match=f"allowed is at most {count}, the validation"):
            more = FormalLanguageSweepParameters(num_sequences=count + 1, **values)
            check_sweep("datasets.x", data, more)


def test_checks_of_what_is_read() -> None:
    data = language("variable_trace")
    longest = dict(checks.longest_read(data, None))
    assert longest == {"validation.longest": 102, "test.longest": 291}
    assert checks.data_bytes(data) == 2 * (60 * 102 + 12 * 291)
    assert checks.same_tokens(data, language("variable_trace", seed=4))
    assert not checks.same_tokens(data, language("variable_trace", size=4))
