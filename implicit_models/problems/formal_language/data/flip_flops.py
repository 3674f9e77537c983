"""Flip-flops: a bit that is written, and must be read however long ago that was.

Flip-flop language modelling is Liu et al. 2023 (arXiv:2306.00946); that writing can be undone is
asked by Zhou 2026 (arXiv:2604.05923), of whose distribution ours is not a copy.
"""

import numpy as np
from jaxtyping import Int

from implicit_models.problems.formal_language.data.language import IGNORED, Language, Strings

_WRITE, _READ, _IGNORE, _UNDO = range(4)


class _FlipFlop(Language):
    """What both share: strings are instructions with a bit each, so many tokens in all."""

    num_answers = 2
    shortest = 4
    is_text = True

    def __init__(self, ignore_probability: float) -> None:
        self.ignore_probability = ignore_probability

    def most_tokens(self, length: int) -> int:
        """Return the length, less one where it is odd."""
        return length - length % 2

    def _strings(
        self, instructions: Int[np.ndarray, "N P"], bits: Int[np.ndarray, "N P"]
    ) -> Strings:
        """Return instructions and their bits in turn; the bit of each reading is asked for."""
        inputs = np.stack([2 + instructions, bits], axis=2).reshape(len(bits), -1)
        asked = np.where(instructions == _READ, bits, IGNORED)
        labels = np.stack([asked, np.full_like(bits, IGNORED)], axis=2).reshape(len(bits), -1)
        return Strings.of_one_length(inputs, labels)


class FlipFlop(_FlipFlop):
    """A bit is written, read or ignored; the first instruction writes, the last reads."""

    tokens = ("0", "1", "write", "read", "ignore")

    def draw(self, generator: np.random.Generator, num_sequences: int, length: int) -> Strings:
        """Draw instructions; those that are not to ignore write or read, equally often."""
        shape = (num_sequences, length // 2)
        instructions = generator.integers(2, size=shape)
        instructions[generator.random(shape) < self.ignore_probability] = _IGNORE
        instructions[:, 0], instructions[:, -1] = _WRITE, _READ
        bits = generator.integers(2, size=shape)
        places = np.where(instructions == _WRITE, np.arange(shape[1]), 0)
        last = np.maximum.accumulate(places, axis=1)
        stored = np.take_along_axis(bits, last, axis=1)
        return self._strings(instructions, np.where(instructions == _READ, stored, bits))


class UndoFlipFlop(_FlipFlop):
    """A flip-flop whose last writing that still stands can be undone, the first excepted."""

    tokens = ("0", "1", "write", "read", "ignore", "undo")

    def draw(self, generator: np.random.Generator, num_sequences: int, length: int) -> Strings:
        """Draw instructions; those that are not to ignore write, read or undo, equally often.

        Where nothing is left to undo, a bit is written instead. The bit behind an undoing means
        nothing.
        """
        shape = (num_sequences, length // 2)
        instructions = np.array([_WRITE, _READ, _UNDO])[generator.integers(3, size=shape)]
        instructions[generator.random(shape) < self.ignore_probability] = _IGNORE
        instructions[:, 0], instructions[:, -1] = _WRITE, _READ
        bits = generator.integers(2, size=shape)
        rows = np.arange(num_sequences)
        written = np.zeros(shape, dtype=np.int64)  # the bits that stand, the last one at `height`
        height = np.full(num_sequences, -1)
        for place in range(shape[1]):
            now = instructions[:, place]
            now[(now == _UNDO) & (height == 0)] = _WRITE
            height += (now == _WRITE).astype(np.int64) - (now == _UNDO)
            writes = now == _WRITE
            written[rows[writes], height[writes]] = bits[writes, place]
            bits[:, place] = np.where(now == _READ, written[rows, height], bits[:, place])
        return self._strings(instructions, bits)
