"""Word problems on disk: write the splits of a data set, open them memory-mapped.

A folder holds ``metadata.json`` and, for every split (``train``, ``validation``, ``test_L16`` ...),
a folder with the arrays ``inputs.npy`` and ``labels.npy``, (num_sequences, length).
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt
from tqdm import tqdm

from implicit_models.data import groups
from implicit_models.data.manifests import read_manifest
from implicit_models.data.parameters import DatasetParameters
from implicit_models.data.sequences import ReservedSequences, prefix_products, sample_inputs
from implicit_models.parameters import ParameterError

FORMAT_VERSION = 2

_METADATA = "metadata.json"
_SPLIT = re.compile(r"train|validation|test_L\d+")
_ARRAYS = ("inputs", "labels")
_MAX_ROUNDS = 100  # of drawing again what another split already holds


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
        for name, split in self.splits.items():
            for kind in _ARRAYS:
                digest = hashlib.sha256(getattr(split, kind).data).hexdigest()
                if digest != self.metadata["splits"][name][f"{kind}_digest"]:
                    path = self.directory / _file_name(name, kind)
                    raise DataError(f"{path}: the content has changed; {_again(self.directory)}")


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """One split before it is drawn."""

    name: str
    stream: int
    num_sequences: int
    length: int
    identity_probability: float


def write_splits(parameters: DatasetParameters, directory: Path) -> dict[str, Any]:
    """Draw a word problem and write its splits.

    No sequence is shared between train, validation and test: a sequence that is a prefix of one
    of another split, or has one as its prefix, is drawn again. Tests are drawn first, then the
    validation split, then the training split, whose distribution is therefore the one asked for
    given that it contains nothing of the others. Within a split, and between tests of different
    lengths, sequences may repeat. Every split has its own stream of random numbers, seeded by the
    data set's seed, the kind of split and the length.

    Files appear under their names only when all are complete, the metadata last.

    Returns
    -------
    dict
        The metadata, as written.

    Raises
    ------
    ParameterError
        If the splits cannot be kept apart, because there are too few sequences of such a length.
    """
    directory = Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        metadata = _write_all(parameters, partial)
        _move_into_place(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return metadata


def open_splits(directory: Path, names: Iterable[str] | None = None) -> WordProblem:
    """Open the word problem that `write_splits` has written, memory-mapped and read-only.

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
            arrays = (_open_array(directory, name, kind, metadata) for kind in _ARRAYS)
            splits[name] = Split(*arrays)
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{directory / _METADATA}: is incomplete, {error!s} is missing; {_again(directory)}"
        ) from None
    return WordProblem(directory, metadata, splits)


def _again(directory: Path) -> str:
    return f"`dvc repro prepare@{directory.name}` writes it"


def _check_name(name: str, names: Iterable[str], directory: Path) -> None:
    if name not in names:
        raise DataError(f"{directory}: no split {name!r}; there are {', '.join(names)}")


def _write_all(parameters: DatasetParameters, folder: Path) -> dict[str, Any]:
    table = groups.multiplication_table(parameters.group)
    reserved = ReservedSequences()
    splits: dict[str, Any] = {}
    batches = _plans(parameters)
    total = sum(plan.num_sequences * plan.length for batch in batches for plan in batch)
    with tqdm(total=total, desc="word problem", unit="token", unit_scale=True, disable=None) as bar:
        for batch in batches:
            for plan in batch:
                splits[plan.name] = _write_split(plan, parameters, table, reserved, folder, bar)
            if batch is not batches[-1]:
                for plan in batch:
                    reserved.add(np.load(folder / _file_name(plan.name, "inputs")))
    metadata = {
        "format_version": FORMAT_VERSION,
        "kind": parameters.kind,
        "group": parameters.group,
        "vocabulary_size": len(table),
        "table_digest": groups.table_digest(table),
        "dtype": table.dtype.name,
        "identity_probability": parameters.identity_probability,
        "monoid_sampling": parameters.monoid_sampling,
        "seed": parameters.seed,
        "splits": splits,
    }
    with open(folder / _METADATA, "w") as file:
        json.dump(metadata, file, indent=2, sort_keys=True)
        file.write("\n")
    return metadata


def _plans(parameters: DatasetParameters) -> list[list[_Plan]]:
    """Plan all splits in the order in which they are drawn: tests, validation, train."""
    train, validation, test = parameters.train, parameters.validation, parameters.test
    probability = parameters.identity_probability
    tests = [
        _Plan(
            name=f"test_L{length}",
            stream=2,
            num_sequences=test.num_sequences,
            length=length,
            identity_probability=(
                probability if test.identity_probability is None else test.identity_probability
            ),
        )
        for length in test.lengths
    ]
    others = [
        [
            _Plan(
                name=name,
                stream=stream,
                num_sequences=split.num_sequences,
                length=split.length,
                identity_probability=probability,
            )
        ]
        for name, stream, split in (("validation", 1, validation), ("train", 0, train))
    ]
    return [tests, *others]


def _write_split(
    plan: _Plan,
    parameters: DatasetParameters,
    table: np.ndarray,
    reserved: ReservedSequences,
    folder: Path,
    progress: tqdm,
) -> dict[str, Any]:
    """Draw one split block by block; returns its entry of the metadata."""
    generator = np.random.default_rng([parameters.seed, plan.stream, plan.length])
    shape = plan.num_sequences, plan.length
    (folder / plan.name).mkdir()
    files = {
        kind: np.lib.format.open_memmap(
            folder / _file_name(plan.name, kind), mode="w+", dtype=table.dtype, shape=shape
        )
        for kind in _ARRAYS
    }
    digests = {kind: hashlib.sha256() for kind in _ARRAYS}
    num_redrawn = 0
    rows = min(4096, max(256, 2**24 // plan.length))
    for start in range(0, plan.num_sequences, rows):
        num_rows = min(rows, plan.num_sequences - start)
        inputs, redrawn = _draw(generator, plan, parameters, num_rows, reserved)
        num_redrawn += redrawn
        for kind, array in (("inputs", inputs), ("labels", prefix_products(table, inputs))):
            files[kind][start : start + num_rows] = array
            digests[kind].update(array.data)
        progress.update(inputs.size)
    for file in files.values():
        file.flush()
    return {
        "num_sequences": plan.num_sequences,
        "length": plan.length,
        "identity_probability": plan.identity_probability,
        "num_redrawn": num_redrawn,
        **{f"{kind}_digest": digest.hexdigest() for kind, digest in digests.items()},
    }


def _draw(
    generator: np.random.Generator,
    plan: _Plan,
    parameters: DatasetParameters,
    num_sequences: int,
    reserved: ReservedSequences,
) -> tuple[np.ndarray, int]:
    """Draw sequences that are not reserved; returns them and how many draws were refused."""

    def sample(num_sequences: int) -> np.ndarray:
        return sample_inputs(
            generator,
            groups.parse(parameters.group),
            num_sequences=num_sequences,
            length=plan.length,
            identity_probability=plan.identity_probability,
            monoid_sampling=parameters.monoid_sampling,
        )

    inputs = sample(num_sequences)
    refused = np.flatnonzero(reserved.shared(inputs))
    num_redrawn = 0
    for _ in range(_MAX_ROUNDS):
        if not len(refused):
            return inputs, num_redrawn
        num_redrawn += len(refused)
        again = sample(len(refused))
        inputs[refused] = again
        refused = refused[reserved.shared(again)]
    raise ParameterError(
        f"{plan.name}.length = {plan.length} is too short: nearly every {plan.name} sequence drawn "
        "is already, whole or as a prefix, in another split "
        f"({parameters.group}, identity probability {plan.identity_probability}); train, "
        "validation and test must not share sequences: raise the shortest length, lower "
        "num_sequences of test and validation, or lower identity_probability"
    )


def _move_into_place(partial: Path, directory: Path) -> None:
    """Replace the splits in the folder; without metadata it counts as incomplete."""
    directory.mkdir(exist_ok=True)
    (directory / _METADATA).unlink(missing_ok=True)
    for stale in directory.glob("*/"):
        if stale.is_symlink():
            stale.unlink()
        elif _SPLIT.fullmatch(stale.name):
            shutil.rmtree(stale)
    for split in sorted(partial.glob("*/")):
        os.replace(split, directory / split.name)
    os.replace(partial / _METADATA, directory / _METADATA)


def _file_name(split: str, kind: str) -> str:
    return f"{split}/{kind}.npy"


def _read_metadata(directory: Path) -> dict[str, Any]:
    path = directory / _METADATA
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
    path = directory / _file_name(split, kind)
    entry = metadata["splits"][split]
    try:
        array = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {_again(directory)}") from None
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{path}: is truncated or not a .npy file ({error}); {_again(directory)}"
        ) from None
    shape, dtype = (entry["num_sequences"], entry["length"]), metadata["dtype"]
    for what, found, expected in (
        ("shape", array.shape, shape),
        ("dtype", array.dtype.name, dtype),
    ):
        if found != expected:
            raise DataError(
                f"{path}: the {what} is {found}, metadata says {expected}; {_again(directory)}"
            )
    return array
