"""Tokens in files: documents one after the other, each ended, none across two files.

A shard is a one-dimensional ``.npy`` file. Readers map it into memory; what is taken from it is
copied only where it spans several shards or is packed into rows.
"""

import contextlib
import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer, UInt

from implicit_models.data.arrays import open_array

MAX_SHARD_TOKENS = 2**27  # 256 MiB of 16-bit ids; only a single longer document makes a longer one


class CorpusError(ValueError):
    """A corpus's source, or a corpus on disk, is missing, incomplete, damaged or cannot be used."""


class ShardWriter:
    """Append documents to ``tokens_00000.npy``, ``tokens_00001.npy`` ... of a folder.

    Parameters
    ----------
    end_of_text
        Written behind every document.
    """

    def __init__(self, folder: Path, dtype: np.dtype, end_of_text: int) -> None:
        self._folder = folder
        self._dtype = np.dtype(dtype)
        self._end = np.array([end_of_text], dtype=self._dtype)
        self._file: Any = None
        self._digest = hashlib.sha256()
        self._num_tokens_before = 0
        self._num_tokens_in_shard = 0
        self._shards: list[dict[str, Any]] = []

    @property
    def num_tokens(self) -> int:
        """Tokens written so far, ends of text included."""
        return self._num_tokens_before + self._num_tokens_in_shard

    def append(self, document: Integer[np.ndarray, " num_tokens"]) -> int:
        """Write a document; returns the position of its first token in the whole stream."""
        added = len(document) + 1
        full = self._num_tokens_in_shard + added > MAX_SHARD_TOKENS
        if self._file is not None and full:
            self._close_shard()
        if self._file is None:
            self._file = (self._folder / f"tokens_{len(self._shards):05d}.npy").open("wb")
            self._write_header()
        start = self.num_tokens
        for part in (np.ascontiguousarray(document, dtype=self._dtype), self._end):
            self._file.write(part.data)
            self._digest.update(part.data)
        self._num_tokens_in_shard += added
        return start

    def close(self) -> list[dict[str, Any]]:
        """Finish the last shard; returns file name, ``num_tokens`` and ``sha256`` of each."""
        if self._file is not None:
            self._close_shard()
        return self._shards

    def abandon(self) -> None:
        """Close a shard that is not finished, and will not be."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk, which was told of before
                self._file.close()
            self._file = None

    def _write_header(self) -> None:
        # numpy leaves room for the first dimension to grow, so the header can be written anew.
        self._file.write(npy_header(self._dtype, self._num_tokens_in_shard))

    def _close_shard(self) -> None:
        name = Path(self._file.name).name
        self._file.seek(0)
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        entry = {"num_tokens": self._num_tokens_in_shard, "sha256": self._digest.hexdigest()}
        self._shards.append({"file": name} | entry)
        self._num_tokens_before += self._num_tokens_in_shard
        self._num_tokens_in_shard = 0
        self._digest = hashlib.sha256()


def npy_header(dtype: np.dtype, length: int) -> bytes:
    """Return the header of the ``.npy`` file of an array of one dimension."""
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (length,),
    }
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, header)
    return content.getvalue()


def open_shard(path: Path, *, num_tokens: int, dtype: str) -> UInt[np.ndarray, " num_tokens"]:
    """Map a shard into memory, read-only.

    Raises
    ------
    CorpusError
        If the file is missing, cut off, or holds something else.
    """
    try:
        shard = open_array(path)
    except FileNotFoundError:
        raise CorpusError(f"{path}: no such file") from None
    except (ValueError, OSError) as error:
        raise CorpusError(f"{path}: is truncated or not a .npy file ({error})") from None
    for what, found, expected in (
        ("shape", shard.shape, (num_tokens,)),
        ("dtype", shard.dtype.name, dtype),
    ):
        if found != expected:
            raise CorpusError(f"{path}: the {what} is {found}, its split says {expected}")
    return np.asarray(shard)


def tokens_digest(shard: UInt[np.ndarray, " num_tokens"]) -> str:
    """Return the SHA-256 of the tokens of a shard, as `ShardWriter` notes it."""
    return hashlib.sha256(shard.data).hexdigest()


class TokenStream:
    """The tokens of several shards as one long array, of which only slices are ever read."""

    def __init__(self, shards: Sequence[UInt[np.ndarray, " num_tokens"]]) -> None:
        self.shards = tuple(shards)
        self._starts = np.cumsum([0, *(len(shard) for shard in self.shards)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def shape(self) -> tuple[int]:
        """The number of tokens, as numpy's arrays tell it."""
        return (len(self),)

    @property
    def dtype(self) -> np.dtype:
        """Of the ids."""
        return self.shards[0].dtype

    def __getitem__(self, key: slice | int) -> Any:
        if not isinstance(key, slice):
            position = range(len(self))[key]
            return self._range(position, position + 1)[0]
        start, stop, step = key.indices(len(self))
        if step != 1:
            return self[:][key]
        return self._range(start, stop)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self[:], dtype=dtype, copy=copy)

    def rows(self, starts: Int64[np.ndarray, " N"], length: int) -> UInt[np.ndarray, "N length"]:
        """Copy so many tokens from each of some positions on."""
        found = np.empty((len(starts), length), dtype=self.dtype)
        places = np.searchsorted(self._starts, starts, side="right") - 1
        within = starts - self._starts[places]
        fits = starts + length <= self._starts[places + 1]
        chosen = zip(found, places.tolist(), within.tolist(), fits.tolist(), strict=True)
        for row, (target, place, first, is_whole) in enumerate(chosen):
            if is_whole:
                target[:] = self.shards[place][first : first + length]
            else:
                start = int(starts[row])
                target[:] = self._range(start, start + length)
        return found

    def truncated(self, num_tokens: int | None) -> "TokenStream":
        """Return the first tokens; all of them where no number is given, or there are fewer."""
        if num_tokens is None or num_tokens >= len(self):
            return self
        starts = self._starts[:-1].tolist()
        needed = zip(starts, self.shards, strict=True)
        kept = [shard[: num_tokens - start] for start, shard in needed if start < num_tokens]
        return TokenStream(kept or [self.shards[0][:0]])

    def _range(self, start: int, stop: int) -> np.ndarray:
        place = max(0, int(np.searchsorted(self._starts, start, side="right")) - 1)
        parts = []
        while place < len(self.shards) and (before := int(self._starts[place])) < stop:
            parts.append(self.shards[place][max(0, start - before) : stop - before])
            place += 1
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, self.dtype)
