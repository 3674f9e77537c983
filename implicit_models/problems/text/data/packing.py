"""Sequences of one length, cut from a stream of tokens without regard to its shards."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from implicit_models.problems.text.data.shards import TokenStream


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of equal length from a stream: an array (N, length) that is copied when indexed.

    Attributes
    ----------
    length
        Tokens in a row.
    offset
        Of the first row's first token: 0 for inputs, 1 for the tokens that follow.
    """

    stream: TokenStream
    length: int
    offset: int

    def __len__(self) -> int:
        return max(0, len(self.stream) - 1) // self.length  # the last one needs a label

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and their length, as numpy's arrays tell them."""
        return len(self), self.length

    @property
    def dtype(self) -> np.dtype:
        """Of the ids."""
        return self.stream.dtype

    def __getitem__(self, key: Any) -> np.ndarray:
        chosen, columns = key if isinstance(key, tuple) else (key, slice(None))
        if not isinstance(columns, slice) or columns.step not in (None, 1):
            return self[chosen][..., columns]
        rows = self._numbers(chosen)
        start, stop, _ = columns.indices(self.length)
        length = max(0, stop - start)
        first = np.ravel(rows) * self.length + self.offset + start
        return self.stream.rows(first, length).reshape(*np.shape(rows), length)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self[:], dtype=dtype, copy=copy)

    def _numbers(self, chosen: Any) -> Int64[np.ndarray, "..."]:
        """Return the numbers of the rows that a key chooses, in memory for these alone."""
        if isinstance(chosen, slice):
            return np.arange(*chosen.indices(len(self)), dtype=np.int64)
        rows = np.asarray(chosen)
        if rows.dtype == bool:
            if rows.shape != (len(self),):
                raise IndexError(f"a mask of {rows.shape} chooses of as many rows, not {len(self)}")
            rows = np.flatnonzero(rows)
        elif rows.size and rows.dtype.kind not in "iu":
            raise IndexError(f"rows are chosen by whole numbers, not by {rows.dtype}")
        rows = rows.astype(np.int64)
        outside = (rows < -len(self)) | (rows >= len(self))
        if outside.any():
            raise IndexError(f"there is no row {rows[outside][0]}, there are {len(self)}")
        return np.where(rows < 0, rows + len(self), rows)


@dataclass(frozen=True, eq=False)
class Packed:
    """A token stream packed into sequences of one length, with the next token as each label.

    Each row goes on where the one before has stopped; what is left at the end of the stream, and
    is shorter than a row and its last label, is not used.
    """

    inputs: Rows
    labels: Rows


def pack(stream: TokenStream, length: int) -> Packed:
    """Pack tokens into sequences of one length; see `Packed`."""
    return Packed(*(Rows(stream, length, offset) for offset in (0, 1)))
