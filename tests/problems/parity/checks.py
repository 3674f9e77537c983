"""What is known of parities before anything runs."""

from collections.abc import Iterator
from typing import Any

from tests.problems.parity.parameters import ParityParameters


def missing(key: str, data: ParityParameters) -> tuple[str, ...]:
    return ()


def downloads(key: str, data: ParityParameters) -> tuple[str, ...]:
    """Return nothing: it is generated."""
    return ()


def check_trained(key: str, length: int, evaluation: Any) -> None:
    pass


def longest_read(data: ParityParameters | None, evaluation: Any) -> Iterator[tuple[str, int]]:
    if data is not None:
        yield "length", data.length


def tokens_at_most(data: ParityParameters) -> dict[str, int]:
    return {}


def tokens_tested(parameters: Any) -> None:
    pass


def same_tokens(data: ParityParameters, other: ParityParameters) -> bool:
    return True


def known_vocabulary(data: ParityParameters) -> int:
    return 2


def data_bytes(data: ParityParameters) -> int:
    return data.num_sequences * data.length
