"""Streams of stories on disk, opened memory-mapped, and the sequences that they are cut into.

A folder holds ``metadata.json`` and, for every split, a folder with ``tokens.npy``, all stories in
a row, each with ``<eos>`` before it, and ``questions.npy``, a row for each question: the place of
its "?", its task, and the lines back to its nearest and its furthest supporting fact.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Integer

from implicit_models.data.folders import check_digests, open_listed_array
from implicit_models.data.manifests import read_manifest
from implicit_models.problems.catbabi.stories.vocabulary import SPECIAL

FORMAT_VERSION = 1
METADATA = "metadata.json"
ARRAYS = ("tokens", "questions")
SPLITS = ("train", "validation", "test")
EOS = SPECIAL.index("<eos>")
IGNORED = -100
"""A label that no loss counts."""


class StreamError(ValueError):
    """Streams on disk are missing, incomplete or damaged."""


@dataclass(frozen=True, eq=False)
class Stream:
    """A split: all its stories in a row."""

    tokens: Integer[np.ndarray, " T"]
    questions: Integer[np.ndarray, "Q 4"]

    @property
    def starts(self) -> Int[np.ndarray, " S"]:
        """The places of the stories' first tokens, which are ``<eos>``."""
        return np.flatnonzero(self.tokens == EOS)


@dataclass(frozen=True, eq=False)
class Streams:
    """A data set on disk, or some splits of it, whose shapes have been checked."""

    folder: Path
    metadata: dict[str, Any]
    splits: Mapping[str, Stream]

    @property
    def vocabulary(self) -> list[str]:
        """All words, by their numbers."""
        return self.metadata["vocabulary"]

    def verify(self) -> None:
        """Compare the content of every array with its digest in the metadata.

        Raises
        ------
        StreamError
            Naming the first file whose content has changed.
        """
        check_digests(
            self.folder,
            self.splits,
            ARRAYS,
            self.metadata["splits"],
            again=_again(self.folder),
            error=StreamError,
        )


@dataclass(frozen=True, eq=False)
class Rows:
    """A stream cut into rows of one length: an array (N, length) that is copied when indexed.

    The last row goes on with the stream's first tokens, so that no token is left out.

    Attributes
    ----------
    is_labels
        Whether the rows are the labels: the next tokens, those after a "?" alone where only
        answers are learned.
    question_mark
        The number of "?", where only answers are learned; None otherwise.
    """

    tokens: Integer[np.ndarray, " T"]
    length: int
    is_labels: bool
    question_mark: int | None

    def __len__(self) -> int:
        return -(-len(self.tokens) // self.length)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and their length."""
        return len(self), self.length

    def __getitem__(self, key: Any) -> Int[np.ndarray, "..."]:
        chosen, columns = key if isinstance(key, tuple) else (key, slice(None))
        rows = np.arange(len(self))[chosen]
        places = rows[..., None] * self.length + np.arange(self.length)[columns]
        tokens = self.tokens[places % len(self.tokens)].astype(np.int64)
        if not self.is_labels:
            return tokens
        labels = self.tokens[(places + 1) % len(self.tokens)].astype(np.int64)
        if self.question_mark is None:
            return labels
        return np.where(tokens == self.question_mark, labels, IGNORED)


@dataclass(frozen=True, eq=False)
class Cut:
    """A stream as sequences to learn from, each of which goes on from the one before."""

    inputs: Rows
    labels: Rows

    @classmethod
    def of(cls, stream: Stream, length: int, question_mark: int | None) -> "Cut":
        """Cut a stream; see `Rows`."""
        rows = (Rows(stream.tokens, length, each, question_mark) for each in (False, True))
        return cls(*rows)


def open_streams(folder: Path, names: Iterable[str] = SPLITS) -> Streams:
    """Open what `writing.write_streams` has written; the content of the arrays is not read.

    Raises
    ------
    StreamError
        If the folder or a file is missing or does not fit the metadata.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise StreamError(f"{folder}: no such folder; {_again(folder)}")
    keys = ("vocabulary", "splits", "objective", "source")
    metadata = read_manifest(
        folder / METADATA,
        version=FORMAT_VERSION,
        keys=keys,
        what="data set",
        again=_again(folder),
        error=StreamError,
    )
    splits = {}
    for name in names:
        if name not in metadata["splits"]:
            raise StreamError(f"{folder}: no split {name!r}; {_again(folder)}")
        splits[name] = Stream(*(_open(folder, name, kind, metadata) for kind in ARRAYS))
    return Streams(folder, metadata, splits)


def _open(folder: Path, split: str, kind: str, metadata: Mapping[str, Any]) -> np.ndarray:
    counted = metadata["splits"][split][f"num_{kind}"]
    return open_listed_array(
        folder / split / f"{kind}.npy",
        (counted,) if kind == "tokens" else (counted, 4),
        again=_again(folder),
        error=StreamError,
    )


def _again(folder: Path) -> str:
    return f"`dvc repro prepare@{folder.name}` (or prepare_corpus@{folder.name}) writes it"
