"""What is known of parities before anything runs."""

from collections.abc import Iterator
from typing import Any

from tests.problems.parity.parameters import ParityParameters


def missing(key: str, data: ParityParameters) -> tuple[str, ...]:
    """Return nothing: it is generated."""
    return ()


def downloads(key: str, data: ParityParameters) -> tuple[tuple[str, bool], ...]:
    """Return nothing: it is generated."""
    return ()


def check_trained(key: str, length: int, evaluation: Any) -> None:
    """See that the report can score a model: it can whatever is evaluated."""


def longest_read(data: ParityParameters | None, evaluation: Any) -> Iterator[tuple[str, int]]:
    """Yield the keys that say how long the texts are, and how many tokens they have."""
    if data is not None:
        yield "length", data.length
        yield "test_length", data.test_length


def tokens_at_most(data: ParityParameters) -> dict[str, int]:
    """Return nothing: no key asks for a number of tokens."""
    return {}


def tokens_tested(parameters: Any) -> None:
    """Return None: no key asks for a number of tokens."""


def same_tokens(data: ParityParameters, other: ParityParameters) -> bool:
    """Return that a model of one entry can read any other: all are bits."""
    return True


def known_vocabulary(data: ParityParameters) -> int:
    """Return the number of token ids."""
    return 2


def data_bytes(data: ParityParameters) -> int:
    """Return what an entry takes on the disk."""
    return data.num_sequences * (2 * data.length + data.test_length)
