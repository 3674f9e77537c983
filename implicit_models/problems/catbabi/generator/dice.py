"""Random choices for a story, quick one by one: NumPy's numbers, drawn in blocks."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

_BLOCK = 64


class Dice:
    """Choices that a NumPy generator decides."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._waiting: list[float] = []

    def fraction(self) -> float:
        """Draw a number of [0, 1)."""
        if not self._waiting:
            self._waiting = self._generator.random(_BLOCK).tolist()
        return self._waiting.pop()

    def below(self, stop: int) -> int:
        """Draw a number of 0 .. stop-1."""
        return int(self.fraction() * stop)

    def one_of(self, values: Sequence[T]) -> T:
        """Draw one of some values."""
        return values[int(self.fraction() * len(values))]

    def other_than(self, values: Sequence[T], *excluded: T | None) -> T:
        """Draw one of some values that is none of those excluded."""
        while True:
            value = self.one_of(values)
            if value not in excluded:
                return value

    def happens(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.fraction() < probability

    def sample(self, values: Sequence[T], number: int) -> list[T]:
        """Draw some different values, in random order."""
        left = list(values)
        for index in range(number):
            other = index + self.below(len(left) - index)
            left[index], left[other] = left[other], left[index]
        return left[:number]

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """Return all values in random order."""
        return self.sample(values, len(values))

    def cycled(self, values: Sequence[T]) -> list[T]:
        """Return all values in an order of one cycle: none stays where it is, if there are two."""
        left = list(values)
        for index in range(len(left) - 1, 0, -1):
            other = self.below(index)
            left[index], left[other] = left[other], left[index]
        return left
