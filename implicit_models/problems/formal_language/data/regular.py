"""Regular languages: a running state of a few values is all that an answer needs.

The tasks are those of Delétang et al. 2023 ("Neural networks and the Chomsky hierarchy").
"""

from dataclasses import dataclass

import numpy as np

from implicit_models.problems.formal_language.data.language import IGNORED, Strings

_BITS = ("0", "1")


class _Regular:
    """What regular languages share."""

    shortest = 1
    is_prefix_closed = True
    is_text = False
    ignores = False

    def most_tokens(self, length: int) -> int:
        """Return the length itself."""
        return length


@dataclass(frozen=True)
class Parity(_Regular):
    """Whether the number of ones is odd."""

    tokens = _BITS
    num_answers = 2

    def draw(
        self,
        generator: np.random.Generator,
        num_sequences: int,
        length: int,
        ignore_probability: float,
    ) -> Strings:
        """Draw bits; the answer is their sum modulo 2."""
        bits = generator.integers(2, size=(num_sequences, length))
        return Strings.of_one_length(bits, bits.cumsum(axis=1) % 2)


@dataclass(frozen=True)
class EvenPairs(_Regular):
    """Whether neighbours differ an odd number of times: whether first and last token differ."""

    tokens = _BITS
    num_answers = 2

    def draw(
        self,
        generator: np.random.Generator,
        num_sequences: int,
        length: int,
        ignore_probability: float,
    ) -> Strings:
        """Draw bits; the answer is 1 where the last differs from the first."""
        bits = generator.integers(2, size=(num_sequences, length))
        return Strings.of_one_length(bits, (bits != bits[:, :1]).astype(np.int64))


@dataclass(frozen=True)
class CycleNavigation(_Regular):
    """Where one stands on a circle of ``size`` places after steps of -1, 0 and 1."""

    size: int

    @property
    def tokens(self) -> tuple[str, ...]:
        """The steps, and the places."""
        return ("stay", "on", "back", *map(str, range(self.size)))

    @property
    def num_answers(self) -> int:
        """The places."""
        return self.size

    def draw(
        self,
        generator: np.random.Generator,
        num_sequences: int,
        length: int,
        ignore_probability: float,
    ) -> Strings:
        """Draw steps; the answer is their sum modulo the size."""
        steps = generator.integers(3, size=(num_sequences, length))
        places = np.array([0, 1, -1])[steps].cumsum(axis=1) % self.size
        return Strings.of_one_length(steps, 3 + places)


@dataclass(frozen=True)
class ModularArithmetic(_Regular):
    """The value modulo ``size`` of a sum of products, without brackets.

    Strings have an odd number of tokens: of an even length, the last is left out.
    """

    size: int

    @property
    def tokens(self) -> tuple[str, ...]:
        """The digits, and the operators."""
        return (*map(str, range(self.size)), "+", "-", "*")

    @property
    def num_answers(self) -> int:
        """The digits."""
        return self.size

    def draw(
        self,
        generator: np.random.Generator,
        num_sequences: int,
        length: int,
        ignore_probability: float,
    ) -> Strings:
        """Draw digits and operators in turn; each digit ends an expression, which has a value."""
        num_digits = (length + 1) // 2
        digits = generator.integers(self.size, size=(num_sequences, num_digits))
        operators = generator.integers(3, size=(num_sequences, num_digits - 1))
        inputs = np.empty((num_sequences, 2 * num_digits - 1), dtype=np.int64)
        inputs[:, ::2], inputs[:, 1::2] = digits, self.size + operators
        labels = np.full_like(inputs, IGNORED)
        total, term = np.zeros(num_sequences, dtype=np.int64), digits[:, 0]
        labels[:, 0] = term
        for place in range(1, num_digits):
            digit, operator = digits[:, place], operators[:, place - 1]
            is_product = operator == 2
            total = np.where(is_product, total, (total + term) % self.size)
            term = np.where(is_product, term * digit, np.where(operator == 0, digit, -digit))
            term = term % self.size
            labels[:, 2 * place] = (total + term) % self.size
        return Strings.of_one_length(inputs, labels)
