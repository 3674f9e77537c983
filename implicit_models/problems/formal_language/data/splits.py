"""Strings of a formal language on disk, opened memory-mapped.

A folder holds ``metadata.json`` and, for every split (``train``, ``validation``, ``test`` ...), a
folder with the arrays ``inputs.npy`` and ``labels.npy``, (num_sequences, most tokens), the answers
at the tokens that are asked at, and ``sizes.npy``, (num_sequences, 2), of each string its length
and its tokens.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Integer

from implicit_models.data.folders import check_digests, open_listed_array
from implicit_models.data.manifests import read_manifest
from implicit_models.problems.formal_language.data.language import IGNORED

FORMAT_VERSION = 1
METADATA = "metadata.json"
ARRAYS = {"inputs": "int8", "labels": "int8", "sizes": "int32"}
"""The arrays of a split, and their dtypes."""


class StringsError(ValueError):
    """Strings on disk are missing, incomplete or damaged, or none that a language can have."""


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and answers of one split: read-only memory maps."""

    inputs: Integer[np.ndarray, "N T"]
    labels: Integer[np.ndarray, "N T"]
    sizes: Integer[np.ndarray, "N 2"]

    @property
    def lengths(self) -> Int[np.ndarray, " N"]:
        """Of each string, as the language counts them."""
        return np.asarray(self.sizes[:, 0], dtype=np.int64)

    @property
    def num_tokens(self) -> Int[np.ndarray, " N"]:
        """Of each string; what lies behind is padding."""
        return np.asarray(self.sizes[:, 1], dtype=np.int64)

    def rows(self, chosen: Any) -> "Split":
        """Return some of the strings."""
        return Split(self.inputs[chosen], self.labels[chosen], self.sizes[chosen])


@dataclass(frozen=True, eq=False)
class NextTokens:
    """The next token at each token of strings: an array that is made when indexed."""

    split: Split

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of strings, and the most tokens of one."""
        return self.split.inputs.shape

    def __len__(self) -> int:
        return len(self.split.inputs)

    def __getitem__(self, key: Any) -> Int[np.ndarray, "..."]:
        rows, columns = key if isinstance(key, tuple) else (key, slice(None))
        inputs = np.asarray(self.split.inputs[rows], dtype=np.int64)
        labels = np.full_like(inputs, IGNORED)
        labels[..., :-1] = inputs[..., 1:]
        labels[self._is_last_or_behind(rows, inputs)] = IGNORED
        return labels[..., columns]

    def _is_last_or_behind(self, rows: Any, inputs: np.ndarray) -> Bool[np.ndarray, "..."]:
        ends = np.asarray(self.split.sizes[:, 1])[rows, None]
        return np.arange(inputs.shape[-1]) >= ends - 1


@dataclass(frozen=True, eq=False)
class Learned:
    """Strings as they are learned from."""

    inputs: Integer[np.ndarray, "N T"]
    labels: Any


@dataclass(frozen=True, eq=False)
class FormalLanguageData:
    """A data set on disk, or some splits of it, whose shapes and dtypes have been checked."""

    folder: Path
    metadata: dict[str, Any]
    splits: Mapping[str, Split]

    @property
    def tokens(self) -> list[str]:
        """All tokens, by their ids."""
        return self.metadata["tokens"]

    def learned(self, name: str) -> Learned:
        """Return a split as it is learned from: its answers, or all next tokens."""
        split = self.splits[name]
        is_all = self.metadata["objective"] == "all"
        return Learned(split.inputs, NextTokens(split) if is_all else split.labels)

    def verify(self) -> None:
        """Compare the content of every array with its digest in the metadata.

        Raises
        ------
        StringsError
            Naming the first file whose content has changed.
        """
        check_digests(
            self.folder,
            self.splits,
            ARRAYS,
            self.metadata["splits"],
            again=_again(self.folder),
            error=StringsError,
        )


def open_splits(folder: Path, names: Iterable[str] | None = None) -> FormalLanguageData:
    """Open what `writing.write_strings` has written; the content of the arrays is not read.

    Parameters
    ----------
    names
        The splits to open; all of them where not given.

    Raises
    ------
    StringsError
        If the folder or a file is missing or does not fit the metadata.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise StringsError(f"{folder}: no such folder; {_again(folder)}")
    metadata = read_manifest(
        folder / METADATA,
        version=FORMAT_VERSION,
        keys=("tokens", "splits", "objective", "language", "num_answers", "tests"),
        what="data set",
        again=_again(folder),
        error=StringsError,
    )
    splits = {}
    for name in metadata["splits"] if names is None else names:
        if name not in metadata["splits"]:
            known = ", ".join(metadata["splits"])
            raise StringsError(f"{folder}: no split {name!r}; there are {known}")
        splits[name] = Split(*(_open(folder, name, kind, metadata) for kind in ARRAYS))
    return FormalLanguageData(folder, metadata, splits)


def _open(folder: Path, split: str, kind: str, metadata: Mapping[str, Any]) -> np.ndarray:
    try:
        entry = metadata["splits"][split]
        count, most = entry["num_sequences"], entry["most_tokens"]
    except (KeyError, TypeError) as error:
        raise StringsError(
            f"{folder / METADATA}: is incomplete, {error!s} is missing; {_again(folder)}"
        ) from None
    return open_listed_array(
        folder / split / f"{kind}.npy",
        (count, 2 if kind == "sizes" else most),
        ARRAYS[kind],
        again=_again(folder),
        error=StringsError,
    )


def _again(folder: Path) -> str:
    return f"`dvc repro prepare@{folder.name}` writes it"
