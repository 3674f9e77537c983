"""What is known of a word problem, and of models of it, before anything runs."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from implicit_models.parameters import ParameterError
from implicit_models.problems.word_problem.parameters import (
    WordProblemEvaluationParameters,
    WordProblemParameters,
    vocabulary_size,
)


def missing(key: str, data: WordProblemParameters) -> tuple[str, ...]:
    """Return nothing: a word problem is generated."""
    return ()


def downloads(key: str, data: WordProblemParameters) -> tuple[str, ...]:
    """Return nothing: a word problem is generated."""
    return ()


def check_trained(key: str, length: int, evaluation: WordProblemEvaluationParameters) -> None:
    """See that a length is evaluated that the model was trained on.

    Raises
    ------
    ParameterError
        Where there is none.
    """
    if min(evaluation.lengths) > length:
        raise ParameterError(
            f"{key}.lengths = {list(evaluation.lengths)} is not allowed; allowed are lengths with "
            f"one of at most {length} among them, the longest that this model is trained on: the "
            "report says whether it has learned that"
        )


def longest_read(
    data: WordProblemParameters | None, evaluation: WordProblemEvaluationParameters | None
) -> Iterator[tuple[str, int]]:
    """Yield the length of the sequences that are validated with, and of the longest tested ones."""
    if data is not None:
        yield "validation.length", data.validation.length
    if evaluation is not None:
        yield "lengths", max(evaluation.lengths)


def tokens_at_most(data: WordProblemParameters) -> dict[str, int]:
    """Return nothing: its splits are not made of a text."""
    return {}


def tokens_tested(parameters: Any) -> None:
    """Return None, for want of a text."""


def same_tokens(data: WordProblemParameters, other: WordProblemParameters) -> bool:
    """Return whether both have as many elements."""
    return vocabulary_size(data) == vocabulary_size(other)


def known_vocabulary(data: WordProblemParameters) -> int:
    """Return the number of elements."""
    return vocabulary_size(data)


def data_bytes(data: WordProblemParameters) -> int:
    """Return what inputs and labels of all splits take."""
    number = np.min_scalar_type(vocabulary_size(data) - 1).itemsize
    tokens = sum(each.num_sequences * each.length for each in (data.train, data.validation))
    tested = sum(data.test.num_sequences_of(length) * length for length in data.test.lengths)
    tokens += tested * len(data.tested_probabilities)
    return 2 * number * tokens
