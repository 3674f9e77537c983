"""Languages that no finite state decides: a stack, or all of the string, has to be remembered.

The tasks are those of Delétang et al. 2023 ("Neural networks and the Chomsky hierarchy").
"""

import numpy as np

from implicit_models.problems.formal_language.data.language import IGNORED, Language, Strings


class BracketedArithmetic(Language):
    """The value modulo ``size`` of an expression with brackets around every operation."""

    def __init__(self, size: int) -> None:
        self.size = self.num_answers = size
        self.tokens = (*map(str, range(size)), "+", "-", "*", "(", ")")

    def draw(self, generator: np.random.Generator, num_sequences: int, length: int) -> Strings:
        """Draw expressions; the value is asked at the last token."""
        labels = np.full((num_sequences, length), IGNORED)
        inputs = np.empty_like(labels)
        for row in range(num_sequences):
            inputs[row], labels[row, -1] = self._expression(generator, length)
        return Strings.of_one_length(inputs, labels)

    def _expression(self, generator: np.random.Generator, length: int) -> tuple[list[int], int]:
        """Draw an expression of so many tokens, and return it with its value.

        It is a digit, a digit with a minus, one of these in brackets, or two expressions with an
        operator between them in brackets, whose lengths are drawn uniformly. What is left to write
        is on a stack: the length of an expression, or what ends one.
        """
        plus, minus, times, opening, closing = range(self.size, self.size + 5)
        written: list[int] = []
        values: list[int] = []
        left: list[int | tuple[str, int]] = [length]
        while left:
            item = left.pop()
            if isinstance(item, tuple):
                what, operator = item
                written.append(operator if what == "operator" else closing)
                if what == "operation":
                    second, first = values.pop(), values.pop()
                    found = {plus: first + second, minus: first - second, times: first * second}
                    values.append(found[operator] % self.size)
            elif item <= 2:
                digit = int(generator.integers(self.size))
                written += [minus, digit] if item == 2 else [digit]
                values.append(-digit % self.size if item == 2 else digit)
            elif item <= 4:
                written.append(opening)
                left += [("bracket", closing), item - 2]
            else:
                first = int(generator.integers(1, item - 3))
                operator = int(generator.integers(plus, opening))
                written.append(opening)
                left += [("operation", operator), item - 3 - first, ("operator", operator), first]
        return written, values[0]


class ReverseString(Language):
    """The string backwards, a token at each of as many question marks behind it."""

    tokens = ("0", "1", "?")
    num_answers = 2

    def most_tokens(self, length: int) -> int:
        """Return the tokens of string and answers."""
        return 2 * length

    def draw(self, generator: np.random.Generator, num_sequences: int, length: int) -> Strings:
        """Draw bits, and ask for them from the last to the first."""
        bits = generator.integers(2, size=(num_sequences, length))
        inputs = np.concatenate([bits, np.full_like(bits, self.tokens.index("?"))], axis=1)
        labels = np.concatenate([np.full_like(bits, IGNORED), bits[:, ::-1]], axis=1)
        return Strings.of_one_length(inputs, labels)
