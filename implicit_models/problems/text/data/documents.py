"""Documents: what a text, or a record with a text in one of its fields, has to be."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from implicit_models.problems.text.data.shards import CorpusError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class RecordError(CorpusError):
    """A record is no document; whoever knows its place puts that in front of the message."""


class UnusableError(RecordError):
    """A record is a document that cannot be used: empty, no text, too long, or of no domain."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text, as it is and in UTF-8, and what kind it is of."""

    domain: str
    text: str
    encoded: bytes


@dataclass(frozen=True, kw_only=True)
class RecordReader:
    """How a record becomes a document.

    Attributes
    ----------
    text_field, domain_field
        Of a record; dots lead into nested ones.
    max_bytes
        Of the longest document that is let through.
    """

    text_field: str
    domain_field: str | None
    max_bytes: int

    def line(self, line: str, domain: str) -> Document:
        """Take the document out of a line of JSON.

        Raises
        ------
        RecordError
            If the line holds something else.
        """
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RecordError(
                f"is not valid JSON ({error}); allowed is an object with fields"
            ) from None
        if not isinstance(fields, dict):
            raise RecordError(f"is {_shown(fields)}; allowed is an object with fields")
        return self.fields(fields, domain)

    def fields(self, fields: Mapping[str, Any], domain: str) -> Document:
        """Take the document out of the fields of a record.

        Parameters
        ----------
        domain
            Of the document where no field is named for it.

        Raises
        ------
        RecordError
            If a field is missing, or is no text or no domain.
        """
        if self.domain_field is not None:
            domain = _domain(fields, self.domain_field)
        text = look_up(fields, self.text_field, "text_field")
        if text is None:
            raise UnusableError(
                f"the field {self.text_field!r} is null, which is not text; give it one"
            )
        if not isinstance(text, str):
            raise RecordError(
                f"the field {self.text_field!r} is {_shown(text)}, which is not text: set "
                "text_field to one that is"
            )
        return self.text(text, domain)

    def text(self, text: str, domain: str) -> Document:
        """Take a text for a document.

        Raises
        ------
        RecordError
            If it is empty, too long, or cannot be written in UTF-8.
        """
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise UnusableError(
                f"character {error.start} of the text is half of a pair of surrogates "
                f"(\\u{ord(text[error.start]):04x}), which is no text; mend the line"
            ) from None
        if not text.strip():
            raise UnusableError("the document is empty; remove it, or give it a text")
        self.check_length(len(encoded))
        return Document(domain=domain, text=text, encoded=encoded)

    def check_length(self, num_bytes: int, aside: int = 0) -> None:
        """Refuse a document that is too long.

        Parameters
        ----------
        aside
            Of a file, what may be no text: a byte order mark.

        Raises
        ------
        UnusableError
            If it has more than ``max_bytes``.
        """
        if num_bytes > self.max_bytes + aside:
            raise UnusableError(
                f"the document has {num_bytes:,} bytes; at most {self.max_bytes:,} are tokenised "
                "at once with this tokenizer: divide it into several documents"
            )


def look_up(fields: Mapping[str, Any], name: str, key: str) -> Any:
    """Return the field of that very name, or the one that its dots lead to; of null all is null.

    Raises
    ------
    RecordError
        If there is none; ``key`` is the parameter that named it.
    """
    if name in fields:
        return fields[name]
    found: Any = fields
    for part in name.split("."):
        if found is None:
            return None
        if not isinstance(found, dict) or part not in found:
            there = ", ".join(map(repr, list(fields)[:12])) or "none"
            raise RecordError(
                f"there is no field {name!r}; the fields are {there}: set {key} to one of them, "
                "with dots for nested ones"
            )
        found = found[part]
    return found


def decode(content: bytes, position: int, file: str) -> str:
    """Return the text of the bytes at ``position`` of a file.

    A byte order mark at the file's beginning is no part of it.

    Raises
    ------
    CorpusError
        If they are not UTF-8; names the file, and the byte.
    """
    if position == 0 and content.startswith(BYTE_ORDER_MARK):
        position = len(BYTE_ORDER_MARK)
        content = content[position:]
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{file}: is not UTF-8: byte {position + error.start} is "
            f"0x{content[error.start]:02x} ({error.reason}); convert the file, for example with "
            "iconv -t utf-8"
        ) from None


def _domain(fields: Mapping[str, Any], name: str) -> str:
    domain = look_up(fields, name, "domain_field")
    if domain is None or domain == "":
        raise UnusableError(f"the field {name!r} is {_shown(domain)}, which is no domain; name one")
    if isinstance(domain, bool | dict | list):
        raise RecordError(f"the field {name!r} is {_shown(domain)}; allowed is a name or a number")
    return str(domain)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
