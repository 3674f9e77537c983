"""Labelled sequences, as training reads them and evaluation judges them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

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


@dataclass(frozen=True)
class Continuation:
    """How the sequences of a data set go on from one another.

    Attributes
    ----------
    is_ordered
        Whether a sequence goes on from the one before it in the data; otherwise from any.
    labels
        Takes the labels, (B, L), of sequences that go on from others, and the last labels of those,
        (B,): what the labels become. None where they stay as they are.
    """

    is_ordered: bool
    labels: "Callable[[Tensor, Tensor], Tensor] | None" = None
