"""What a corpus is made from: a source, cut into units that processes tokenise on their own.

A source alone decides its units, and a unit where its parts end, never the number of processes: so
the corpus is the same whoever writes it, and what is finished of it is found again.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from implicit_models.problems.text.data.documents import Document

UNIT_BYTES = 2**26  # of text, about: a minute of a slow tokenizer, which is what a kill can lose


class Omitted(enum.Enum):
    """Why a record gives no document."""

    BLANK = "blank"  # a line between documents
    UNUSABLE = "unusable"


Record = tuple[int, Document | Omitted]
"""A number within its range, from 1 (0 for a file that is one document), and what is there."""


@dataclass(frozen=True, kw_only=True)
class FileRange:
    """A file of a source, or the part of one that is read from its beginning to its end.

    Attributes
    ----------
    name
        Of the file under the source, or of the shard: the first half of its documents' names.
    start, stop
        Which range of it: bytes of a file of lines, row groups of a table; both 0 for all of it.
    num_bytes
        About how much text there is; 0 where that is not known.
    """

    name: str
    start: int = 0
    stop: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Ranges of files that one process reads, one after the other.

    Attributes
    ----------
    number
        Its place among all units, which is the order of their documents in the corpus.
    split
        What its files are named for: ``test``, ``validation``, or ``train`` for all others.
    """

    number: int
    split: str
    ranges: tuple[FileRange, ...]

    @property
    def num_bytes(self) -> int:
        """About how much text there is; 0 where that is not known."""
        return sum(file_range.num_bytes for file_range in self.ranges)


class Source(Protocol):
    """Where documents come from. It is sent to the processes that read them."""

    def units(self, unit_bytes: int) -> list[Unit]:
        """Cut the source into units of about so many bytes of text.

        Those come first that are named for the test, then those named for validation.
        """
        ...

    def read(self, file_range: FileRange, after: int) -> Iterator[Record]:
        """Read what follows the first ``after`` records of a range of a file."""
        ...

    def place(self, file_range: FileRange, number: int) -> str:
        """Return where a record of a range is, for a message."""
        ...

    def identity(self) -> Any:
        """Return plain values that change when the content does."""
        ...

    def description(self) -> dict[str, Any]:
        """Return where the documents are from, for the manifest."""
        ...


def group_ranges(ranges: Iterable[FileRange], unit_bytes: int) -> list[tuple[FileRange, ...]]:
    """Put neighbours together, as long as they hold no more text than a unit."""
    groups: list[list[FileRange]] = []
    room = 0
    for file_range in ranges:
        if not groups or file_range.num_bytes > room:
            groups.append([])
            room = unit_bytes
        groups[-1].append(file_range)
        room -= file_range.num_bytes
    return [tuple(group) for group in groups]
