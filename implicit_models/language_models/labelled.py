"""Labelled sequences, as training reads them and evaluation judges them."""

from typing import Any, Protocol, runtime_checkable

LAST_TOKENS = 10  # the positions at the end of a sequence that ``accuracy_last_10`` is about


@runtime_checkable
class TokenArray(Protocol):
    """Token ids or labels, (num_sequences, length), read where indexed: an array, or files."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of sequences, and their length."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


@runtime_checkable
class Sequences(Protocol):
    """Token ids and aligned labels, both (num_sequences, length)."""

    @property
    def inputs(self) -> TokenArray:
        """Token ids."""
        ...

    @property
    def labels(self) -> TokenArray:
        """What belongs to each token and all before it."""
        ...
