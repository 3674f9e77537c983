"""Permutations told in words: a language model meets state tracking as a text like these.

The answer to a question is part of the text, as it is in a text that somebody wrote: what is asked
next has to be followed from there. With an ``ask_probability`` of 0 nothing is told before the last
statement, which always asks, and all of the text has to be followed.

Composing permutations as the trace of an interpreter is Siems et al. 2026 (arXiv:2602.14814), of
whose format ours is not a copy.
"""

from collections.abc import Iterable

import numpy as np

from implicit_models.problems.formal_language.data.language import IGNORED, Language, Strings

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class _Trace(Language):
    """What both share: a length is a number of statements, the last of which asks."""

    is_text = True

    def __init__(self, size: int, ask_probability: float, words: Iterable[str]) -> None:
        self.size = self.num_answers = size
        self.ask_probability = ask_probability
        self.tokens = (*words, *map(str, range(1, size + 1)))

    def _statements(
        self, generator: np.random.Generator, num_sequences: int, length: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw which statements ask, and two different things for each of them."""
        asks = generator.random((num_sequences, length)) < self.ask_probability
        asks[:, -1] = True
        first = generator.integers(self.size, size=asks.shape)
        second = (first + generator.integers(1, self.size, size=asks.shape)) % self.size
        return asks, first, second

    def _strings(self, texts: list[list[str]], most: int) -> Strings:
        """Return texts as tokens; the token behind "?" or a bare name's end of line is asked for.

        Parameters
        ----------
        texts
            Their words; what is asked for is marked by a None before it.
        """
        ids = {token: number for number, token in enumerate(self.tokens)}
        inputs = np.zeros((len(texts), most), dtype=np.int64)
        labels = np.full((len(texts), most), IGNORED)
        num_tokens = np.empty(len(texts), dtype=np.int64)
        for row, text in enumerate(texts):
            words = [ids[word.removeprefix(_ASKED)] for word in text]
            inputs[row, : len(words)] = words
            num_tokens[row] = len(words)
            for place, word in enumerate(text):
                if word.startswith(_ASKED):
                    labels[row, place - 1] = words[place]
        return Strings(inputs, labels, num_tokens)


_ASKED = "\0"  # before a word that is the answer to what stands before it


class SwappedCups(_Trace):
    """Under which of ``size`` cups a ball is, while two of them at a time are swapped."""

    def __init__(self, size: int, ask_probability: float) -> None:
        words = ("the", "ball", "is", "under", "cup", "swap", "and", "where", "?", ".")
        super().__init__(size, ask_probability, words)

    def most_tokens(self, length: int) -> int:
        """Return the tokens of the beginning, and of statements that all ask."""
        return 7 + 7 * length

    def draw(self, generator: np.random.Generator, num_sequences: int, length: int) -> Strings:
        """Draw swaps and questions."""
        asks, first, second = self._statements(generator, num_sequences, length)
        start = generator.integers(self.size, size=num_sequences)
        texts = []
        for row in range(num_sequences):
            place = int(start[row])
            text = ["the", "ball", "is", "under", "cup", str(place + 1), "."]
            statements = zip(*(each[row].tolist() for each in (asks, first, second)), strict=True)
            for is_question, one, other in statements:
                if is_question:
                    answer = f"{_ASKED}{place + 1}"
                    text += ["where", "is", "the", "ball", "?", answer, "."]
                else:
                    place = {one: other, other: one}.get(place, place)
                    text += ["swap", str(one + 1), "and", str(other + 1), "."]
            texts.append(text)
        return self._strings(texts, self.most_tokens(length))


class VariableTrace(_Trace):
    """Which value each of ``size`` variables has in the trace of an interpreter that swaps them."""

    def __init__(self, size: int, ask_probability: float) -> None:
        super().__init__(size, ask_probability, (">>>", "=", ",", "\n", *_LETTERS[:size]))

    def most_tokens(self, length: int) -> int:
        """Return the tokens of the beginning, and of statements that all swap."""
        return 4 * self.size + 1 + 9 * length

    def draw(self, generator: np.random.Generator, num_sequences: int, length: int) -> Strings:
        """Draw swaps of two variables, and variables whose value the interpreter tells."""
        asks, first, second = self._statements(generator, num_sequences, length)
        start = generator.permuted(np.tile(np.arange(1, self.size + 1), (num_sequences, 1)), axis=1)
        names = _LETTERS[: self.size]
        texts = []
        for row in range(num_sequences):
            values = list(map(str, start[row].tolist()))
            text = [">>>", *_separated(names), "=", *_separated(values), "\n"]
            statements = zip(*(each[row].tolist() for each in (asks, first, second)), strict=True)
            for is_question, one, other in statements:
                if is_question:
                    text += [">>>", names[one], "\n", f"{_ASKED}{values[one]}", "\n"]
                else:
                    values[one], values[other] = values[other], values[one]
                    sides = (names[one], ",", names[other]), (names[other], ",", names[one])
                    text += [">>>", *sides[0], "=", *sides[1], "\n"]
            texts.append(text)
        return self._strings(texts, self.most_tokens(length))


def _separated(words: str | list[str]) -> list[str]:
    """Return words with a comma between each two."""
    return [part for word in words for part in (",", word)][1:]
