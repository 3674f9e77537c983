"""What is known of a formal language, and of models of it, before anything runs."""

from collections.abc import Iterator
from typing import Any

from implicit_models.problems.formal_language.parameters import (
    FormalLanguageEvaluationParameters,
    FormalLanguageParameters,
    vocabulary_size,
)


def missing(key: str, data: FormalLanguageParameters) -> tuple[str, ...]:
    """Return nothing: strings are generated."""
    return ()


def downloads(key: str, data: FormalLanguageParameters) -> tuple[str, ...]:
    """Return nothing: strings are generated."""
    return ()


def check_trained(key: str, length: int, evaluation: FormalLanguageEvaluationParameters) -> None:
    """Accept all: the validation strings, which are evaluated too, tell what was learned."""


def longest_read(
    data: FormalLanguageParameters | None, evaluation: FormalLanguageEvaluationParameters | None
) -> Iterator[tuple[str, int]]:
    """Yield the most tokens of a string that is validated with, and of one that is tested."""
    if data is not None:
        drawn = data.drawn
        yield "validation.longest", drawn.most_tokens(data.validation.longest)
        yield "test.longest", drawn.most_tokens(data.test.longest)


def tokens_at_most(data: FormalLanguageParameters) -> dict[str, int]:
    """Return nothing: its splits are not made of a text."""
    return {}


def tokens_tested(parameters: Any) -> None:
    """Return None, for want of a text."""


def same_tokens(data: FormalLanguageParameters, other: FormalLanguageParameters) -> bool:
    """Return whether both have the same tokens."""
    return data.drawn.tokens == other.drawn.tokens


def known_vocabulary(data: FormalLanguageParameters) -> int:
    """Return the number of tokens."""
    return vocabulary_size(data)


def data_bytes(data: FormalLanguageParameters) -> int:
    """Return what inputs and labels of all splits take."""
    drawn = data.drawn
    tokens = (
        strings.num_sequences * drawn.most_tokens(strings.longest)
        for strings, _ in data.splits.values()
    )
    return 2 * sum(tokens)
