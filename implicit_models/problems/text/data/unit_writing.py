"""Tokenise a unit of a corpus: read, find each document's split, write the tokens.

A unit comes out in parts of about so many bytes of text, each a folder that appears when it is
complete, so that an interrupted unit goes on behind its last part.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from implicit_models.problems.text.data.document_index import DOCUMENTS, ROW
from implicit_models.problems.text.data.documents import Document, UnusableError
from implicit_models.problems.text.data.shards import CorpusError, ShardWriter
from implicit_models.problems.text.data.sources import Omitted, Source, Unit
from implicit_models.problems.text.data.splitting import (
    DIGESTS,
    ReservedTexts,
    drawn_split,
    text_digest,
)
from implicit_models.problems.text.data.tokenisation import TextTokenizer
from implicit_models.problems.text.parameters import CorpusParameters

PART = "part.json"
DIGESTS_FILE = "digests.npy"

_BATCH_BYTES = 2**21  # of text that is tokenised together


@dataclass(frozen=True)
class Part:
    """A part of a unit that is complete.

    Attributes
    ----------
    content
        Of ``part.json``: ``next``, index of the range and number of the record after which the
        unit goes on, or null at its end; ``num_records`` of each range so far; ``num_unusable``
        documents and ``num_copies`` of held-out ones; and counts, shards and names of domains of
        every split.
    """

    folder: Path
    content: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class UnitWriter:
    """Tokenises units; it is sent to the processes that do.

    Attributes
    ----------
    folder
        Where units are written, each in a folder of its number.
    reserved
        Texts of the files that are named for splits and were read before.
    part_bytes
        Of text, after which a part ends.
    """

    source: Source
    tokenizer: TextTokenizer
    parameters: CorpusParameters
    folder: Path
    reserved: ReservedTexts
    part_bytes: int

    def __call__(self, unit: Unit, advance: Callable[[int], None]) -> None:
        """Write the parts of a unit that are not there yet.

        Parameters
        ----------
        advance
            Is told now and then how many tokens there are more.

        Raises
        ------
        CorpusError
            If a document cannot be read, or the disk is full.
        """
        folder = unit_folder(self.folder, unit)
        folder.mkdir(parents=True, exist_ok=True)
        parts = finished_parts(folder)
        number = len(parts)
        range_index, after = parts[-1].content["next"] if parts else (0, 0)
        num_records = dict(parts[-1].content["num_records"]) if parts else {}
        records = self._records(unit, range_index, after)
        place: tuple[int, int] | None = (range_index, after)
        while place is not None:
            part = _PartWriter(self, unit, folder / f".{number:04d}", advance)
            try:
                place = part.fill(records, num_records)
                part.close({"next": place, "num_records": num_records})
                os.replace(part.folder, folder / f"{number:04d}")
            except OSError as error:
                raise CorpusError(
                    f"{folder}: cannot be written ({error.strerror or error}); what is finished "
                    "stays: mend that, for example make room, and start again"
                ) from None
            finally:
                part.abandon()
            number += 1

    def _records(
        self, unit: Unit, range_index: int, after: int
    ) -> Iterator[tuple[int, int, Document | Omitted]]:
        for index in range(range_index, len(unit.ranges)):
            try:
                for number, record in self.source.read(unit.ranges[index], after):
                    yield index, number, record
            except OSError as error:
                raise CorpusError(
                    f"{unit.ranges[index].name}: cannot be read ({error}); what is finished "
                    "stays: mend that, and start again"
                ) from None
            after = 0


def unit_folder(folder: Path, unit: Unit) -> Path:
    """Return the folder of a unit's parts."""
    return folder / f"{unit.number:06d}"


def finished_parts(folder: Path) -> list[Part]:
    """Read which parts of a unit are complete."""
    found: list[Part] = []
    while (path := folder / f"{len(found):04d}").is_dir():
        found.append(Part(path, json.loads((path / PART).read_text(encoding="utf-8"))))
    return found


def is_finished(parts: list[Part]) -> bool:
    """Return whether nothing of a unit is left to do."""
    return bool(parts) and parts[-1].content["next"] is None


@dataclass(eq=False)
class _SplitWriter:
    """A split of a part that grows: the batch to be tokenised next, and what has been written."""

    folder: Path
    shards: ShardWriter
    batch: list[tuple[int, int, Document]] = field(default_factory=list)
    batch_bytes: int = 0
    num_bytes: int = 0
    rows: list[tuple[int, ...]] = field(default_factory=list)
    domains: dict[str, int] = field(default_factory=dict)


class _PartWriter:
    """A part that grows, in a folder of its own."""

    def __init__(
        self, writer: UnitWriter, unit: Unit, folder: Path, advance: Callable[[int], None]
    ) -> None:
        self.folder = folder
        self._writer = writer
        self._unit = unit
        self._advance = advance
        self._splits: dict[str, _SplitWriter] = {}
        self._digests: list[bytes] = []
        self._num_bytes = 0
        self._end = writer.tokenizer.end_of_text
        self._num_unusable = 0
        self._num_copies = 0
        shutil.rmtree(folder, ignore_errors=True)  # what a killed process has left
        folder.mkdir()

    def fill(
        self,
        records: Iterator[tuple[int, int, Document | Omitted]],
        num_records: dict[str, int],
    ) -> tuple[int, int] | None:
        """Take documents until there are enough; returns the place of the last, None at the end."""
        for range_index, number, record in records:
            num_records[str(range_index)] = number
            if isinstance(record, Document):
                self._add(range_index, number, record)
            elif record is Omitted.UNUSABLE:
                self._num_unusable += 1
            if self._num_bytes >= self._writer.part_bytes:
                return (range_index, number) if number else (range_index + 1, 0)
        return None

    def close(self, content: dict[str, Any]) -> None:
        """Tokenise what is left and write what is known of it."""
        splits = {}
        for name, split in self._splits.items():
            self._flush(split)
            if not split.rows:
                continue
            _save(split.folder / DOCUMENTS, np.array(split.rows, ROW))
            splits[name] = {
                "num_documents": len(split.rows),
                "num_tokens": split.shards.num_tokens,
                "num_bytes": split.num_bytes,
                "shards": split.shards.close(),
                "domains": list(split.domains),
            }
        if self._unit.split != "train":
            _save(self.folder / DIGESTS_FILE, np.array(self._digests, DIGESTS))
        left_out = {"num_unusable": self._num_unusable, "num_copies": self._num_copies}
        content = content | left_out | {"splits": splits}
        with open(self.folder / PART, "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False)
            _to_disk(file)

    def abandon(self) -> None:
        """Close the files and delete the folder, if it does not yet have its final name."""
        for split in self._splits.values():
            split.shards.abandon()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _add(self, range_index: int, number: int, document: Document) -> None:
        digest = text_digest(document.encoded, self._writer.parameters.seed)
        if self._writer.reserved.holds(digest):
            self._num_copies += 1
            return
        name = self._unit.split
        if name == "train":
            name = drawn_split(digest, self._writer.parameters)
        else:
            self._digests.append(digest)
        split = self._split(name)
        split.batch.append((range_index, number, document))
        split.batch_bytes += len(document.encoded)
        self._num_bytes += len(document.encoded)
        if split.batch_bytes >= _BATCH_BYTES:
            self._flush(split)

    def _split(self, name: str) -> _SplitWriter:
        if name not in self._splits:
            folder = self.folder / name
            folder.mkdir()
            tokenizer = self._writer.tokenizer
            writer = ShardWriter(folder, tokenizer.dtype, tokenizer.end_of_text)
            self._splits[name] = _SplitWriter(folder, writer)
        return self._splits[name]

    def _flush(self, split: _SplitWriter) -> None:
        batch = split.batch
        split.batch, split.batch_bytes = [], 0
        tokenizer, before = self._writer.tokenizer, split.shards.num_tokens
        encoded = tokenizer.encode([document.text for _, _, document in batch])
        for (range_index, number, document), tokens in zip(batch, encoded, strict=True):
            try:
                self._check(tokens)
            except UnusableError as error:
                if self._writer.parameters.unusable_documents == "skip":
                    self._num_unusable += 1
                    continue
                place = self._writer.source.place(self._unit.ranges[range_index], number)
                raise CorpusError(f"{place}: {error}") from None
            domain = split.domains.setdefault(document.domain, len(split.domains))
            start = split.shards.append(tokens)
            size = len(document.encoded)
            split.rows.append((start, number, len(tokens), size, range_index, domain))
            split.num_bytes += size
        self._advance(split.shards.num_tokens - before)

    def _check(self, tokens: np.ndarray) -> None:
        """Refuse a document that is no document once it is tokenised."""
        tokenizer = self._writer.tokenizer
        if not len(tokens):
            raise UnusableError(
                f"nothing is left of the document once the tokenizer {tokenizer.name!r} has read "
                "it; remove it, or choose another tokenizer"
            )
        if not tokenizer.is_bytes and self._end in tokens:
            raise UnusableError(
                f"the tokenizer {tokenizer.name!r} reads an end of text within the document, where "
                f"it has {tokenizer.library.id_to_token(self._end)!r}; remove it, or choose "
                "another tokenizer"
            )


def _save(path: Path, array: np.ndarray) -> None:
    with open(path, "wb") as file:
        np.save(file, array)
        _to_disk(file)


def _to_disk(file: IO[Any]) -> None:
    """Write the content to the disk itself, so that a power cut after renaming loses nothing."""
    file.flush()
    os.fsync(file.fileno())
