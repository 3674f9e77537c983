"""What a formal language is: its tokens, and how its strings and their answers are drawn."""

import abc
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Integer

IGNORED = -100
"""The label of a token that nothing is asked at, as in PyTorch."""


@dataclass(frozen=True, eq=False)
class Strings:
    """Strings side by side; what lies behind a shorter one is token 0 and asks nothing.

    Attributes
    ----------
    labels
        The answer at each token that is asked at; `IGNORED` at others.
    num_tokens
        Of each string.
    """

    inputs: Integer[np.ndarray, "N T"]
    labels: Integer[np.ndarray, "N T"]
    num_tokens: Int[np.ndarray, " N"]

    @classmethod
    def of_one_length(
        cls, inputs: Integer[np.ndarray, "N T"], labels: Integer[np.ndarray, "N T"]
    ) -> "Strings":
        """Return strings none of which is shorter than another."""
        return cls(inputs, labels, np.full(len(inputs), inputs.shape[1]))


class Language(abc.ABC):
    """A formal language, with what it draws of each string.

    Attributes
    ----------
    tokens
        What can stand in a string or be an answer; ids are their places.
    num_answers
        How many of them can be an answer.
    shortest
        The least length of a string.
    is_prefix_closed
        Whether a prefix of a string is a string, whose answer is known as well.
    is_text
        Whether the answer to each question is the token that follows it.
    """

    tokens: tuple[str, ...]
    num_answers: int
    shortest = 1
    is_prefix_closed = False
    is_text = False

    def most_tokens(self, length: int) -> int:
        """Return how many tokens a string of a length has at most: as many, unless told."""
        return length

    @abc.abstractmethod
    def draw(self, generator: np.random.Generator, num_sequences: int, length: int) -> Strings:
        """Draw strings of one length, each independently of the others.

        Where `is_prefix_closed`, every prefix has its answer.
        """
