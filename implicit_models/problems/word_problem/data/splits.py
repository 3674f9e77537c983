"""Word problems on disk, opened memory-mapped.

A folder holds ``metadata.json`` and, for every split (``train``, ``validation``, ``test_L16``,
``test_p0.9_L16`` ...), a folder with the arrays ``inputs.npy`` and ``labels.npy``,
(num_sequences, length).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt

from implicit_models.data.folders import check_digests, open_listed_array
from implicit_models.data.manifests import read_manifest
from implicit_models.problems.word_problem.data import groups

FORMAT_VERSION = 3
METADATA = "metadata.json"
ARRAYS = ("inputs", "labels")


class DataError(ValueError):
    """A data set on disk is missing, incomplete, damaged or not what its metadata says."""


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and labels of one split: read-only memory maps."""

    inputs: UInt[np.ndarray, "num_sequences length"]
    labels: UInt[np.ndarray, "num_sequences length"]


@dataclass(frozen=True, eq=False)
class WordProblem:
    """A data set on disk, or some splits of it, whose shapes and dtypes have been checked."""

    directory: Path
    metadata: dict[str, Any]
    splits: Mapping[str, Split]

    @property
    def vocabulary_size(self) -> int:
        """Number of elements of the group, of inputs and labels alike."""
        return self.metadata["vocabulary_size"]

    def split(self, name: str) -> Split:
        """Return a split by its name: ``train``, ``validation``, ``test_L16`` ..."""
        _check_name(name, self.splits, self.directory)
        return self.splits[name]

    def verify(self) -> None:
        """Compare the content of every array with its digest in the metadata.

        Raises
        ------
        DataError
            Naming the first file whose content has changed.
        """
        check_digests(
            self.directory,
            self.splits,
            ARRAYS,
            self.metadata["splits"],
            again=_again(self.directory),
            error=DataError,
        )


def open_splits(directory: Path, names: Iterable[str] | None = None) -> WordProblem:
    """Open the word problem that `writing.write_splits` has written, memory-mapped and read-only.

    Shapes, dtypes and the multiplication table are checked; the content of the arrays is not
    read (`WordProblem.verify` does that).

    Parameters
    ----------
    names
        The splits to open; all of them where not given.

    Raises
    ------
    DataError
        If the folder or a file is missing or does not fit the metadata.
    """
    directory = Path(directory)
    metadata = _read_metadata(directory)
    try:
        splits = {}
        for name in metadata["splits"] if names is None else names:
            _check_name(name, metadata["splits"], directory)
            arrays = (_open_array(directory, name, kind, metadata) for kind in ARRAYS)
            splits[name] = Split(*arrays)
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{directory / METADATA}: is incomplete, {error!s} is missing; {_again(directory)}"
        ) from None
    return WordProblem(directory, metadata, splits)


def _again(directory: Path) -> str:
    return f"`dvc repro prepare@{directory.name}` writes it"


def _check_name(name: str, names: Iterable[str], directory: Path) -> None:
    if name not in names:
        raise DataError(f"{directory}: no split {name!r}; there are {', '.join(names)}")


def name_of_test(length: int, further: float | None = None) -> str:
    """Return the name of the test split of a length, or of a further test with a probability."""
    return f"test_L{length}" if further is None else f"test_p{further}_L{length}"


def further_tests(metadata: Mapping[str, Any]) -> list[float]:
    """Return the probabilities of the identity in tests beside the first, in order."""
    found = metadata["splits"].items()
    further = [split["identity_probability"] for name, split in found if name.startswith("test_p")]
    return sorted(set(further))


def file_name(split: str, kind: str) -> str:
    """Return the path of an array in the folder."""
    return f"{split}/{kind}.npy"


def _read_metadata(directory: Path) -> dict[str, Any]:
    path = directory / METADATA
    if not directory.is_dir():
        raise DataError(f"{directory}: no such folder; {_again(directory)}")
    metadata = read_manifest(
        path,
        version=FORMAT_VERSION,
        what="data set",
        again=_again(directory),
        error=DataError,
    )
    try:
        try:
            table = groups.multiplication_table(metadata["group"])
        except ValueError as error:
            raise DataError(f"{path}: group {error}; {_again(directory)}") from None
        for key, expected in (
            ("vocabulary_size", len(table)),
            ("table_digest", groups.table_digest(table)),
            ("dtype", table.dtype.name),
        ):
            if metadata[key] != expected:
                raise DataError(
                    f"{path}: {key} is {metadata[key]!r}, but {metadata['group']} has "
                    f"{expected!r}; {_again(directory)}"
                )
        if not metadata["splits"]:
            raise DataError(f"{path}: names no splits; {_again(directory)}")
    except KeyError as error:
        raise DataError(
            f"{path}: is incomplete, {error!s} is missing; {_again(directory)}"
        ) from None
    return metadata


def _open_array(directory: Path, split: str, kind: str, metadata: dict[str, Any]) -> np.ndarray:
    entry = metadata["splits"][split]
    return open_listed_array(
        directory / file_name(split, kind),
        (entry["num_sequences"], entry["length"]),
        metadata["dtype"],
        again=_again(directory),
        error=DataError,
    )
