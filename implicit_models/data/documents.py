"""Text files: which there are under a folder, and the documents in each."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicit_models.data.shards import CorpusError

SUFFIXES = (".txt", ".jsonl")

_KINDS = (
    "a source is a .txt file (one document), a .jsonl file (a document in every line), or a folder "
    "with such files, at any depth"
)

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A text file and its path under the source, with slashes."""

    path: Path
    name: str

    @property
    def domain(self) -> str:
        """The first folder under the source, or the file's name without its suffix."""
        first, *rest = Path(self.name).parts
        return first if rest else Path(first).stem


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text, where it is from, and what kind it is of.

    Attributes
    ----------
    name
        Path of the file under the source; of a ``.jsonl`` file with the number of the line.
    num_bytes
        Of the text in UTF-8.
    """

    name: str
    domain: str
    text: str
    num_bytes: int


def find_files(source: Path) -> list[SourceFile]:
    """Find the text files of a source, in the order of their names.

    Raises
    ------
    CorpusError
        If there is nothing, or nothing that is read.
    """
    if source.is_file():
        if source.suffix.lower() not in SUFFIXES:
            raise CorpusError(f"{source}: is of no kind that is read; {_KINDS}")
        return [SourceFile(path=source, name=source.name)]
    if not source.is_dir():
        raise CorpusError(f"{source}: no such file or folder; {_KINDS}")
    names = sorted(
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file()
    )
    shown = [name for name in names if not any(p.startswith(".") for p in Path(name).parts)]
    if not shown:
        raise CorpusError(f"{source}: holds no documents; {_KINDS}")
    return [SourceFile(path=source / name, name=name) for name in shown]


def read_documents(
    file: SourceFile, *, text_field: str, domain_field: str | None, max_bytes: int
) -> Iterator[Document]:
    """Read the documents of one file, one at a time.

    Texts are taken as they are, line ends included; a byte order mark is not part of a text. Lines
    of a ``.jsonl`` file that hold nothing but blanks are passed over.

    Parameters
    ----------
    text_field, domain_field
        Of a line of a ``.jsonl`` file; dots lead into nested ones.
    max_bytes
        Of the longest document that is let through.

    Raises
    ------
    CorpusError
        If a document is empty, too long, not UTF-8, or lacks a field; names the file, and the line
        or the byte.
    """
    if file.path.suffix.lower() == ".txt":
        _check_length(file.path.stat().st_size, max_bytes, str(file.path))
        content = file.path.read_bytes()
        text = _decoded(content, file.path, 0)
        yield _document(text, str(file.path), file.name, file.domain, max_bytes)
        return
    position = 0
    with open(file.path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{file.path}:{number}"
            text = _decoded(line, file.path, position)
            position += len(line)
            if not text.strip():
                continue
            fields = _fields(text, place)
            domain = file.domain if domain_field is None else _domain(fields, domain_field, place)
            content = _look_up(fields, text_field, "text_field", place)
            if not isinstance(content, str):
                raise CorpusError(
                    f"{place}: the field {text_field!r} is {_shown(content)}, which is not text"
                )
            yield _document(content, place, f"{file.name}:{number}", domain, max_bytes)


def _document(text: str, place: str, name: str, domain: str, max_bytes: int) -> Document:
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"{place}: character {error.start} of the text is half of a pair of surrogates "
            f"(\\u{ord(text[error.start]):04x}), which is no text; mend the line"
        ) from None
    if not text.strip():
        raise CorpusError(f"{place}: the document is empty; remove it, or give it a text")
    _check_length(num_bytes, max_bytes, place)
    return Document(name=name, domain=domain, text=text, num_bytes=num_bytes)


def _check_length(num_bytes: int, max_bytes: int, place: str) -> None:
    if num_bytes > max_bytes + len(_BYTE_ORDER_MARK):
        raise CorpusError(
            f"{place}: the document has {num_bytes:,} bytes; at most {max_bytes:,} are tokenised "
            "at once with this tokenizer: divide it into several documents"
        )


def _decoded(content: bytes, path: Path, position: int) -> str:
    """Text of bytes that stand at ``position`` of a file."""
    if position == 0 and content.startswith(_BYTE_ORDER_MARK):
        position = len(_BYTE_ORDER_MARK)
        content = content[position:]
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}: is not UTF-8: byte {position + error.start} is "
            f"0x{content[error.start]:02x} ({error.reason}); convert the file, for example with "
            "iconv -t utf-8"
        ) from None


def _fields(line: str, place: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{place}: is not valid JSON ({error})") from None
    if not isinstance(fields, dict):
        raise CorpusError(f"{place}: is {_shown(fields)}; allowed is an object with fields")
    return fields


def _domain(fields: Mapping[str, Any], name: str, place: str) -> str:
    domain = _look_up(fields, name, "domain_field", place)
    if isinstance(domain, bool | None | dict | list) or domain == "":
        raise CorpusError(
            f"{place}: the field {name!r} is {_shown(domain)}; allowed is a name or a number"
        )
    return str(domain)


def _look_up(fields: Mapping[str, Any], name: str, key: str, place: str) -> Any:
    """Return the field of that very name, or the one that its dots lead to."""
    if name in fields:
        return fields[name]
    found: Any = fields
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            there = ", ".join(map(repr, list(fields)[:12])) or "none"
            raise CorpusError(
                f"{place}: there is no field {name!r}; the fields are {there}: set {key} to one of "
                "them, with dots for nested ones"
            )
        found = found[part]
    return found


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
