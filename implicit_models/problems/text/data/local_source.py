"""Documents from files: which there are, how large ones are cut, and how each kind is read."""

import fnmatch
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from implicit_models.parameters import ParameterError
from implicit_models.problems.text.data.documents import (
    BYTE_ORDER_MARK,
    Document,
    RecordError,
    RecordReader,
    UnusableError,
    decode,
)
from implicit_models.problems.text.data.finding import find_files, kind_of
from implicit_models.problems.text.data.shards import CorpusError
from implicit_models.problems.text.data.sources import (
    FileRange,
    Omitted,
    Record,
    Unit,
    group_ranges,
)
from implicit_models.problems.text.parameters import CorpusParameters

_MAX_LINE_BYTES = 2**31  # of which a document may have a quarter, and JSON may write it longer
_COMPRESSION = 4  # of text by zstd, about
_BLOCK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class LocalSource:
    """Files under a folder, or a single one.

    Attributes
    ----------
    root
        The folder that names are relative to.
    files
        Names of the files for each split, in their order; under ``train`` those not named for one.
    skips_unusable
        Whether a document that is empty or too long is left out instead of refused.
    """

    root: Path
    files: dict[str, tuple[str, ...]]
    reader: RecordReader
    skips_unusable: bool

    def units(self, unit_bytes: int) -> list[Unit]:
        """Cut large files, and put small ones together.

        Raises
        ------
        CorpusError
            If a file is empty or damaged, or a table lacks a field.
        """
        units: list[Unit] = []
        for split, names in self.files.items():
            cut = (file_range for name in names for file_range in self._ranges(name, unit_bytes))
            for ranges in group_ranges(cut, unit_bytes):
                units.append(Unit(number=len(units), split=split, ranges=ranges))
        return units

    def read(self, file_range: FileRange, after: int) -> Iterator[Record]:
        """Read what follows the first ``after`` records of a range of a file.

        Texts are taken as they are, line ends included; a byte order mark is not part of a text.
        Lines that hold nothing but blanks are passed over.

        Raises
        ------
        CorpusError
            If a document is empty, too long, not UTF-8, or lacks a field, or a file is damaged;
            names the file, and the line or the byte.
        """
        domain = _domain(file_range.name)
        for number, content in self._records(file_range, after):
            try:
                yield number, self._record(content, domain)
            except UnusableError as error:
                if not self.skips_unusable:
                    raise CorpusError(f"{self.place(file_range, number)}: {error}") from None
                yield number, Omitted.UNUSABLE
            except RecordError as error:
                raise CorpusError(f"{self.place(file_range, number)}: {error}") from None

    def place(self, file_range: FileRange, number: int) -> str:
        """Return where a record is: file, and number of the line or row.

        The records before the range are counted now: it is only for a mistake.
        """
        path = self.root / file_range.name
        if not number:
            return str(path)
        if kind_of(file_range.name) == ".parquet":
            from implicit_models.problems.text.data.parquet import num_rows_before

            return f"{path}:{num_rows_before(path, file_range.start) + number}"
        return f"{path}:{_num_lines_before(path, file_range.start) + number}"

    def identity(self) -> Any:
        """Return name, size and modification time of every file."""
        found = []
        for split, names in self.files.items():
            for name in names:
                status = (self.root / name).stat()
                found.append([split, name, status.st_size, status.st_mtime_ns])
        return [str(self.root.resolve()), found]

    def description(self) -> dict[str, Any]:
        """Return nothing: the parameters name the source."""
        return {}

    def _ranges(self, name: str, unit_bytes: int) -> list[FileRange]:
        """Cut a file into ranges of about a unit each."""
        path, kind = self.root / name, kind_of(name)
        size = path.stat().st_size
        if not size and kind != ".txt":
            if self.skips_unusable:
                return []
            raise CorpusError(f"{path}: the file is empty; remove it, or fetch it again")
        if kind == ".txt":
            return [FileRange(name=name, num_bytes=size)]
        if kind == ".jsonl.zst":
            return [FileRange(name=name, num_bytes=size * _COMPRESSION)]
        if kind == ".jsonl":
            count = -(-size // unit_bytes)
            cuts = [size * index // count for index in range(count + 1)]
            return [
                FileRange(name=name, start=start, stop=stop, num_bytes=stop - start)
                for start, stop in zip(cuts[:-1], cuts[1:], strict=True)
            ]
        from implicit_models.problems.text.data.parquet import (
            row_group_sizes,  # pyarrow takes its time
        )

        sizes = row_group_sizes(path, self.reader.text_field, self.reader.domain_field)
        row_groups = (
            FileRange(name=name, start=index, stop=index + 1, num_bytes=num_bytes)
            for index, num_bytes in enumerate(sizes)
        )
        return [
            FileRange(
                name=name,
                start=group[0].start,
                stop=group[-1].stop,
                num_bytes=sum(file_range.num_bytes for file_range in group),
            )
            for group in group_ranges(row_groups, unit_bytes)
        ]

    def _records(self, file_range: FileRange, after: int) -> Iterator[tuple[int, Any]]:
        """Yield lines as text, rows as mappings or why not, files as paths, and None for blanks."""
        path, kind = self.root / file_range.name, kind_of(file_range.name)
        if kind == ".txt":
            return iter([(0, path)])
        if kind == ".jsonl.zst":
            return _compressed_lines(path, after)
        if kind == ".jsonl":
            return _lines(path, file_range, after)
        from implicit_models.problems.text.data.parquet import read_rows

        return read_rows(
            path,
            file_range.start,
            file_range.stop,
            after=after,
            text_field=self.reader.text_field,
            domain_field=self.reader.domain_field,
        )

    def _record(self, content: Any, domain: str) -> Document | Omitted:
        if content is None:
            return Omitted.BLANK
        if isinstance(content, UnusableError):
            raise content
        if isinstance(content, Path):
            size = content.stat().st_size  # before it is in memory
            self.reader.check_length(size, aside=len(BYTE_ORDER_MARK))
            return self.reader.text(decode(content.read_bytes(), 0, str(content)), domain)
        if isinstance(content, str):
            return self.reader.line(content, domain)
        return self.reader.fields(content, domain)


def open_local_source(parameters: CorpusParameters, max_bytes: int) -> LocalSource:
    """Find the files of a corpus and the split that each is named for.

    Raises
    ------
    CorpusError
        If there is nothing, or nothing that is read.
    ParameterError
        If a file is named for two splits, or a pattern names none.
    """
    root, names = find_files(Path(parameters.source).expanduser(), parameters.tokenizer)
    return LocalSource(
        root=root,
        files=_named_files(parameters, names),
        reader=RecordReader(
            text_field=parameters.text_field,
            domain_field=parameters.domain_field,
            max_bytes=max_bytes,
        ),
        skips_unusable=parameters.unusable_documents == "skip",
    )


def _domain(name: str) -> str:
    """Return the first folder under the source, or the file's name without its suffix."""
    first, *rest = Path(name).parts
    return first if rest else first[: -len(kind_of(name) or "")]


def _named_files(parameters: CorpusParameters, names: list[str]) -> dict[str, tuple[str, ...]]:
    """Return the files of each split by its patterns, others under ``train``; test comes first."""
    named: dict[str, list[str]] = {"test": [], "validation": [], "train": []}
    held_out = {"test": parameters.test, "validation": parameters.validation}
    for file in names:
        patterns = {
            name: pattern
            for name, split in held_out.items()
            for pattern in split.files
            if fnmatch.fnmatchcase(file, pattern)
        }
        if len(patterns) > 1:
            raise ParameterError(
                f"validation.files and test.files both name {file}, by "
                f"{patterns['validation']!r} and {patterns['test']!r}; "
                "a file belongs to one split"
            )
        named[next(iter(patterns), "train")].append(file)
    idle = [
        f"{name}.files: {pattern!r}"
        for name, split in held_out.items()
        for pattern in split.files
        if not any(fnmatch.fnmatchcase(file, pattern) for file in named[name])
    ]
    if idle:
        shown = ", ".join(names[:8])
        raise ParameterError(
            f"{' and '.join(idle)} {'names' if len(idle) == 1 else 'name'} no file under "
            f"{parameters.source}, where there are {shown}{' ...' if len(names) > 8 else ''}"
        )
    return {split: tuple(files) for split, files in named.items()}


def _lines(path: Path, file_range: FileRange, after: int) -> Iterator[tuple[int, str | None]]:
    """Read the lines that begin in a range of bytes, None for one of blanks."""
    with open(path, "rb", buffering=_BLOCK_BYTES) as file:
        position = 0
        if file_range.start:
            file.seek(file_range.start - 1)
            position = file_range.start - 1 + len(file.readline())
        yield from _numbered(file, str(path), position, file_range.stop, after)


def _compressed_lines(path: Path, after: int) -> Iterator[tuple[int, str | None]]:
    """Read the lines of a compressed file, None for one of blanks."""
    import pyarrow

    try:
        with (
            pyarrow.OSFile(str(path)) as file,
            pyarrow.CompressedInputStream(file, "zstd") as stream,
            io.BufferedReader(stream, _BLOCK_BYTES) as lines,  # pyright: ignore[reportArgumentType]
        ):
            yield from _numbered(lines, str(path), 0, None, after)
    except OSError as error:
        raise CorpusError(
            f"{path}: is cut off, damaged, or not compressed by zstd ({error}); fetch it again"
        ) from None


def _numbered(
    file: BinaryIO | io.BufferedReader, path: str, position: int, stop: int | None, after: int
) -> Iterator[tuple[int, str | None]]:
    number = 0
    while stop is None or position < stop:
        line = file.readline(_MAX_LINE_BYTES)
        if not line:
            return
        if len(line) == _MAX_LINE_BYTES:
            raise CorpusError(
                f"{path}: the line at byte {position} is longer than {_MAX_LINE_BYTES} bytes; a "
                "document has its own line"
            )
        number += 1
        if number > after:
            text = decode(line, position, path)
            yield number, text if text and not text.isspace() else None
        position += len(line)


def _num_lines_before(path: Path, position: int) -> int:
    """Count the lines that begin before a position, at which one may be half read."""
    if not position:
        return 0
    count, left = 1, position - 1
    with open(path, "rb") as file:
        while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
            count += block.count(b"\n")
            left -= len(block)
    return count
