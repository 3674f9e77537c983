"""Strings and answers of formal languages, held to evaluators that are independent of them."""

import hashlib

import numpy as np
import pytest

from implicit_models.parameters import ParameterError
from implicit_models.problems.formal_language.data.language import IGNORED, Language, Strings
from implicit_models.problems.formal_language.data.languages import SIZED, language
from implicit_models.problems.formal_language.names import NAMES, LanguageName

Answers = dict[int, str]  # what is asked at a place


def parity(tokens: list[str]) -> Answers:
    return {n: str(tokens[: n + 1].count("1") % 2) for n in range(len(tokens))}


def even_pairs(tokens: list[str]) -> Answers:
    pairs = list(zip(tokens, tokens[1:], strict=False))
    return {n: str(sum(a != b for a, b in pairs[:n]) % 2) for n in range(len(tokens))}


def cycle_navigation(tokens: list[str], size: int) -> Answers:
    place, found = 0, {}
    for n, token in enumerate(tokens):
        if token == "on":
            place = 0 if place == size - 1 else place + 1
        elif token == "back":
            place = size - 1 if place == 0 else place - 1
        found[n] = str(place)
    return found


def arithmetic(tokens: list[str], size: int) -> Answers:
    """Python computes it: with its own precedence of operators."""
    return {
        n: str(eval("".join(tokens[: n + 1])) % size)
        for n, token in enumerate(tokens)
        if token.isdigit()
    }


def bracketed_arithmetic(tokens: list[str], size: int) -> Answers:
    return {len(tokens) - 1: str(eval("".join(tokens)) % size)}


def reverse_string(tokens: list[str]) -> Answers:
    half = len(tokens) // 2
    assert tokens[half:] == ["?"] * half
    return {half + n: token for n, token in enumerate(reversed(tokens[:half]))}


def flip_flop(tokens: list[str]) -> Answers:
    written, found = [], {}
    for n in range(0, len(tokens), 2):
        instruction, bit = tokens[n : n + 2]
        if instruction == "write":
            written.append(bit)
        elif instruction == "undo":
            written.pop()
        elif instruction == "read":
            assert bit == written[-1], "the bit that is read is not told"
            found[n] = bit
    return found


def swapped_cups(tokens: list[str]) -> Answers:
    *sentences, last = " ".join(tokens).split(" . ")
    where, place, found = None, 0, {}
    for sentence in (*sentences, last.removesuffix(" .")):
        words = sentence.split()
        if words[0] == "the":
            where = words[-1]
        elif words[0] == "swap":
            one, other = words[1], words[3]
            where = other if where == one else one if where == other else where
        else:
            assert words[:-1] == ["where", "is", "the", "ball", "?"]
            assert words[-1] == where, "the answer stands behind the question"
            found[place + words.index("?")] = words[-1]
        place += len(words) + 1
    return found


def variable_trace(tokens: list[str]) -> Answers:
    """Python runs it: what is behind a prompt is executed, or else printed."""
    known: dict[str, int] = {}
    place, found, asked = 0, {}, None
    for line in " ".join(tokens).removesuffix("\n").split("\n"):
        words = line.split()
        place += len(words)  # of the line's end
        if words[0] != ">>>":
            assert asked is not None
            found[asked] = words[0]
            assert words == [str(known["asked"])]
        elif "=" in words:
            exec("".join(words[1:]), {}, known)
        else:
            asked, known["asked"] = place, known[words[1]]
        place += 1
    return found


EVALUATORS = {
    "parity": lambda tokens, size: parity(tokens),
    "even_pairs": lambda tokens, size: even_pairs(tokens),
    "cycle_navigation": cycle_navigation,
    "modular_arithmetic": arithmetic,
    "bracketed_arithmetic": bracketed_arithmetic,
    "reverse_string": lambda tokens, size: reverse_string(tokens),
    "flip_flop": lambda tokens, size: flip_flop(tokens),
    "undo_flip_flop": lambda tokens, size: flip_flop(tokens),
    "swapped_cups": lambda tokens, size: swapped_cups(tokens),
    "variable_trace": lambda tokens, size: variable_trace(tokens),
}


def drawn(name: LanguageName, size: int, length: int, count: int = 24) -> tuple[Language, Strings]:
    chosen = language(name, size, 0.5)
    return chosen, chosen.draw(np.random.default_rng(length), count, length)


def test_every_language_has_an_evaluator() -> None:
    assert set(EVALUATORS) == set(NAMES)


@pytest.mark.parametrize("length", [4, 5, 17, 40])
@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_an_independent_evaluator(name: LanguageName, length: int) -> None:
    for size in (2, 3, 5) if name in SIZED else (5,):
        chosen, strings = drawn(name, size, length)
        asked = set()
        for inputs, labels, count in zip(
            strings.inputs, strings.labels, strings.num_tokens, strict=True
        ):
            tokens = [chosen.tokens[number] for number in inputs[:count]]
            answers = {
                n: chosen.tokens[label] for n, label in enumerate(labels) if label != IGNORED
            }
            assert answers == EVALUATORS[name](tokens, size)
            assert count <= chosen.most_tokens(length) == strings.inputs.shape[1] or (
                name == "modular_arithmetic" and count == length - 1 + length % 2
            )
            assert not inputs[count:].any() and (labels[count:] == IGNORED).all()
            asked |= set(answers.values())
        assert len(asked) <= chosen.num_answers


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_comes_up(name: LanguageName) -> None:
    chosen, strings = drawn(name, 5, 12, count=400)
    labels = strings.labels[strings.labels != IGNORED]
    assert len(np.unique(labels)) == chosen.num_answers


@pytest.mark.parametrize("name", [each for each in NAMES if language(each, 5).is_text])
def test_in_a_text_the_answer_is_the_next_token(name: LanguageName) -> None:
    _, strings = drawn(name, 5, 20)
    rows, places = np.nonzero(strings.labels != IGNORED)
    assert np.array_equal(strings.labels[rows, places], strings.inputs[rows, places + 1])


@pytest.mark.parametrize("name", [each for each in NAMES if language(each, 5).is_prefix_closed])
def test_a_prefix_is_a_string(name: LanguageName) -> None:
    """What is asked along a string is what would be asked at the end of each prefix."""
    chosen, strings = drawn(name, 5, 15)
    for inputs, labels in zip(strings.inputs, strings.labels, strict=True):
        for end in np.flatnonzero(labels != IGNORED):
            tokens = [chosen.tokens[number] for number in inputs[: end + 1]]
            assert EVALUATORS[name](tokens, 5)[end] == chosen.tokens[labels[end]]


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.98])
def test_instructions_are_ignored_as_often_as_told(probability: float) -> None:
    names: tuple[LanguageName, ...] = ("flip_flop", "undo_flip_flop")
    for chosen in (language(name, ignore_probability=probability) for name in names):
        strings = chosen.draw(np.random.default_rng(0), 64, 512)
        inside = strings.inputs[:, 2:-2:2]  # but the first and the last instruction
        share = (inside == chosen.tokens.index("ignore")).mean()
        assert share == pytest.approx(probability, abs=0.02)


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("name", ["swapped_cups", "variable_trace"])
def test_statements_ask_as_often_as_told(name: LanguageName, probability: float) -> None:
    chosen = language(name, ask_probability=probability)
    strings = chosen.draw(np.random.default_rng(0), 64, 101)
    assert (strings.labels != IGNORED).sum(axis=1).mean() == pytest.approx(
        1 + 100 * probability, abs=1
    )
    for inputs, labels, count in zip(
        strings.inputs, strings.labels, strings.num_tokens, strict=True
    ):
        tokens = [chosen.tokens[number] for number in inputs[:count]]
        answers = {n: chosen.tokens[label] for n, label in enumerate(labels) if label != IGNORED}
        assert answers == EVALUATORS[name](tokens, 5)


def test_lengths_of_expressions_are_all_possible() -> None:
    chosen = language("bracketed_arithmetic", 5)
    for length in range(1, 60):
        strings = chosen.draw(np.random.default_rng(length), 3, length)
        assert strings.inputs.shape == (3, length)


def test_a_name_without_a_language_is_told_what_to_do() -> None:
    with pytest.raises(ParameterError, match="'majority' .* add a line there"):
        language("majority")  # type: ignore[arg-type]


def test_deep_expressions_need_no_recursion() -> None:
    strings = language("bracketed_arithmetic", 5).draw(np.random.default_rng(0), 1, 20_001)
    assert strings.num_tokens.tolist() == [20_001]


GOLDEN = {
    "parity": "105f5241afdf0c6c",
    "even_pairs": "2df2a43ead7da9e6",
    "cycle_navigation": "cd6b0a13444176ef",
    "modular_arithmetic": "c7f808b6d1089756",
    "bracketed_arithmetic": "0ea9f6974bf72d5b",
    "reverse_string": "4819dd2c0539e913",
    "flip_flop": "c985ebd274779c5e",
    "undo_flip_flop": "fc34b4da5efe4984",
    "swapped_cups": "ff58f6bc515fb1c9",
    "variable_trace": "05bde0a1d9138cdf",
}


@pytest.mark.parametrize("name", NAMES)
def test_strings_stay_as_they_were(name: LanguageName) -> None:
    """A change would silently be another data set under the same seed."""
    _, strings = drawn(name, 5, 24)
    content = np.concatenate([strings.inputs, strings.labels], axis=1).astype(np.int64)
    assert hashlib.sha256(content.tobytes()).hexdigest()[:16] == GOLDEN[name]
