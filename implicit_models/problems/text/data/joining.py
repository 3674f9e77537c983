"""Join the parts of all units to the splits of a corpus: shards, and what they hold."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from implicit_models.problems.text.data.document_index import DOCUMENTS, ROW, write_names
from implicit_models.problems.text.data.shards import npy_header
from implicit_models.problems.text.data.sources import Unit
from implicit_models.problems.text.data.unit_writing import Part

JOINED_TOKENS = 2**22  # shards below this are copied together, larger ones stay as they are


@dataclass(frozen=True)
class JoinedSplit:
    """A split that is complete.

    Attributes
    ----------
    shards
        File name, ``num_tokens`` and ``sha256`` of each.
    """

    num_documents: int
    num_tokens: int
    num_bytes: int
    shards: list[dict[str, Any]]


def join_split(
    name: str, units: Sequence[tuple[Unit, Sequence[Part]]], folder: Path, dtype: np.dtype
) -> JoinedSplit:
    """Put a split's documents together in the order of the units.

    Shards appear without being copied where the file system allows it, and stay where they were.
    """
    folder.mkdir()
    entries = [part.content["splits"].get(name) for _, parts in units for part in parts]
    found = [entry for entry in entries if entry is not None]
    totals = {
        key: sum(entry[key] for entry in found)
        for key in ("num_documents", "num_tokens", "num_bytes")
    }
    _join_rows(name, units, folder, totals["num_documents"])
    shards = _join_shards(name, [part for _, parts in units for part in parts], folder, dtype)
    return JoinedSplit(shards=shards, **totals)


@dataclass(eq=False)
class _Numbering:
    """Numbers given to texts in the order in which they come up."""

    numbers: dict[str, int] = field(default_factory=dict)

    def of(self, texts: Sequence[str]) -> np.ndarray:
        return np.array(
            [self.numbers.setdefault(text, len(self.numbers)) for text in texts], np.uint32
        )


def _join_rows(
    name: str, units: Sequence[tuple[Unit, Sequence[Part]]], folder: Path, num_documents: int
) -> None:
    """Write the rows of all documents: starts in the whole stream, numbers in the whole file."""
    files, domains = _Numbering(), _Numbering()
    num_tokens = 0
    with open(folder / DOCUMENTS, "wb") as file:
        file.write(npy_header(ROW, num_documents))
        for unit, before, parts in _with_records_before(units):
            for part in parts:
                split = part.content["splits"].get(name)
                if split is None:
                    continue
                rows = np.load(part.folder / name / DOCUMENTS)
                indices, places = np.unique(rows["file"], return_inverse=True)
                names = [unit.ranges[index].name for index in indices.tolist()]
                first = np.array([before[index] for index in indices.tolist()], np.uint64)
                rows["start"] += np.uint64(num_tokens)
                rows["number"] += np.where(rows["number"] > 0, first[places], np.uint64(0))
                rows["file"] = files.of(names)[places]
                rows["domain"] = domains.of(split["domains"])[rows["domain"]]
                file.write(rows.data)
                num_tokens += split["num_tokens"]
        file.flush()
        os.fsync(file.fileno())
    write_names(folder, list(files.numbers), list(domains.numbers))


def _with_records_before(
    units: Sequence[tuple[Unit, Sequence[Part]]],
) -> Iterator[tuple[Unit, list[int], Sequence[Part]]]:
    """Yield, with each unit, how many records of the same file come before each of its ranges."""
    seen: dict[str, int] = {}
    for unit, parts in units:
        counts: Mapping[str, int] = parts[-1].content["num_records"]
        before = []
        for index, file_range in enumerate(unit.ranges):
            before.append(seen.get(file_range.name, 0))
            seen[file_range.name] = before[-1] + counts.get(str(index), 0)
        yield unit, before, parts


def _join_shards(
    name: str, parts: Sequence[Part], folder: Path, dtype: np.dtype
) -> list[dict[str, Any]]:
    shards = []
    for group in _groups(name, parts):
        path = folder / f"tokens_{len(shards):05d}.npy"
        if len(group) == 1:
            (source, entry) = group[0]
            _link(source, path)
            digest = entry["sha256"]
        else:
            digest = _concatenate([source for source, _ in group], path, dtype)
        num_tokens = sum(entry["num_tokens"] for _, entry in group)
        shards.append({"file": path.name, "num_tokens": num_tokens, "sha256": digest})
    return shards


def _groups(name: str, parts: Sequence[Part]) -> Iterator[list[tuple[Path, dict[str, Any]]]]:
    """Yield files to join into one: as many neighbours as stay below `JOINED_TOKENS` together."""
    group: list[tuple[Path, dict[str, Any]]] = []
    num_tokens = 0
    for part in parts:
        for entry in part.content["splits"].get(name, {"shards": ()})["shards"]:
            if group and num_tokens + entry["num_tokens"] > JOINED_TOKENS:
                yield group
                group, num_tokens = [], 0
            group.append((part.folder / name / entry["file"], entry))
            num_tokens += entry["num_tokens"]
    if group:
        yield group


def _link(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError:  # on another file system, or on one without links
        shutil.copyfile(source, path)


def _concatenate(sources: Sequence[Path], path: Path, dtype: np.dtype) -> str:
    """Write the tokens of several files into one; returns their SHA-256."""
    arrays = [np.load(source, mmap_mode="r") for source in sources]
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        file.write(npy_header(dtype, sum(map(len, arrays))))
        for array in arrays:
            digest.update(array.data)
            file.write(array.data)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
