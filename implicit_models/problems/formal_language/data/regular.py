"""Regular languages: a running state of a few values is all that an answer needs.

The tasks are those of Delétang et al. 2023 ("Neural networks and the Chomsky hierarchy").
"""

import numpy as np

from implicit_models.problems.formal_language.data.language import IGNORED, Language, Strings

_BITS = ("0", "1")


class _Regular(Language):
    """A regular language, of whose strings every prefix is one."""

    is_prefix_closed = True


class Parity(_Regular):
    """Whether the number of ones is odd."""

    tokens = _BITS
    num_answers = 2

    def draw(self, generator: np.random.Generator, num_sequences: int, length: int) -> Strings:
        """Draw bits; the answer is their sum modulo 2."""
        bits = generator.integers(2, size=(num_sequences, length))
        return Strings.of_one_length(bits, bits.cumsum(axis=1) % 2)


class EvenPairs(_Regular):
    """Whether neighbours differ an odd number of times: whether first and last token differ."""

    tokens = _BITS
    num_answers = 2

    def draw(self, generator: np.random.Generator, num_sequences: int, length: int) -> Strings:
        """Draw bits; the answer is 1 where the last differs from the first."""
        bits = generator.integers(2, size=(num_sequences, length))
        return Strings.of_one_length(bits, (bits != bits[:, :1]).astype(np.int64))


class CycleNavigation(_Regular):
    """Where one stands on a circle of ``size`` places after steps of -1, 0 and 1."""

    def __init__(self, size: int) -> None:
        self.size = self.num_answers = size
        self.tokens = ("stay", "on", "back", *map(str, range(size)))

    def draw(self, generator: np.random.Generator, num_sequences: int, length: int) -> Strings:
        """Draw steps; the answer is their sum modulo the size."""
        steps = generator.integers(3, size=(num_sequences, length))
        places = np.array([0, 1, -1])[steps].cumsum(axis=1) % self.size
        return Strings.of_one_length(steps, 3 + places)


class ModularArithmetic(_Regular):
    """The value modulo ``size`` of a sum of products, without brackets.

    Strings have an odd number of tokens: of an even length, the last is left out.
    """

    def __init__(self, size: int) -> None:
        self.size = self.num_answers = size
        self.tokens = (*map(str, range(size)), "+", "-", "*")

    def draw(self, generator: np.random.Generator, num_sequences: int, length: int) -> Strings:
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
