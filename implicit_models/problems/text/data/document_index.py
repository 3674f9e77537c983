"""What is known of the documents of a split, in arrays that are mapped into memory.

``documents.npy`` holds a row for each document, `ROW`; ``names.json`` the files and the domains
that the rows number. A name is the file's, and of a line or a row of it the number as well.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped, UInt

from implicit_models.data.arrays import open_array
from implicit_models.problems.text.data.shards import CorpusError

DOCUMENTS = "documents.npy"
NAMES = "names.json"

ROW = np.dtype(
    [
        ("start", "<u8"),  # of its first token in the split's stream
        ("number", "<u8"),  # of its line or row in the file, from 1; 0 for the whole file
        ("num_tokens", "<u4"),  # without the end of text
        ("num_bytes", "<u4"),
        ("file", "<u4"),
        ("domain", "<u4"),
    ]
)


class Labels(Sequence[str]):
    """A text for each document, put together when it is asked for."""

    def __init__(
        self, rows: np.ndarray, texts: tuple[str, ...], column: str, numbered: bool
    ) -> None:
        self._rows = rows
        self._texts = texts
        self._column = column
        self._numbered = numbered

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        rows = self._rows[index]
        return [self._text(row) for row in rows] if rows.ndim else self._text(rows)

    def _text(self, row: Any) -> str:
        text = self._texts[int(row[self._column])]
        return f"{text}:{row['number']}" if self._numbered and row["number"] else text


@dataclass(frozen=True, eq=False)
class Documents:
    """The documents of a split, in the order of its tokens.

    Attributes
    ----------
    rows
        Of dtype `ROW`, in their file.
    files, texts_of_domains
        What the rows number.
    """

    rows: Shaped[np.ndarray, " num_documents"]
    files: tuple[str, ...]
    texts_of_domains: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def names(self) -> Sequence[str]:
        """Path of each one's file under the source; of a line or a row with its number."""
        return Labels(self.rows, self.files, "file", True)

    @property
    def domains(self) -> Sequence[str]:
        """What kind of text each is."""
        return Labels(self.rows, self.texts_of_domains, "domain", False)

    @property
    def num_bytes(self) -> UInt[np.ndarray, " num_documents"]:
        """Of each text in UTF-8."""
        return self.rows["num_bytes"]

    @property
    def num_tokens(self) -> UInt[np.ndarray, " num_documents"]:
        """Of each, without the end of text behind it."""
        return self.rows["num_tokens"]

    @property
    def starts(self) -> UInt[np.ndarray, " num_documents"]:
        """Position of the first token of each in the split's stream."""
        return self.rows["start"]


def write_names(folder: Path, files: Sequence[str], domains: Sequence[str]) -> None:
    """Write what the rows number."""
    text = json.dumps({"files": list(files), "domains": list(domains)}, ensure_ascii=False)
    (folder / NAMES).write_text(text + "\n", encoding="utf-8")


def open_documents(folder: Path, metadata: Mapping[str, Any], again: str) -> Documents:
    """Open the rows of a split's folder, and read what they number.

    Parameters
    ----------
    metadata
        Of the split: how many documents and tokens there must be.
    again
        How to have them written again; the end of every message.

    Raises
    ------
    CorpusError
        If a file is missing, damaged, or of other tokens.
    """
    path = folder / DOCUMENTS
    try:
        names = json.loads((folder / NAMES).read_text(encoding="utf-8"))
        files, domains = (tuple(map(str, names[key])) for key in ("files", "domains"))
    except FileNotFoundError:
        raise CorpusError(f"{folder / NAMES}: no such file; {again}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise CorpusError(f"{folder / NAMES}: is damaged ({error!s}); {again}") from None
    try:
        rows = open_array(path)
    except FileNotFoundError:
        raise CorpusError(f"{path}: no such file; {again}") from None
    except (ValueError, OSError) as error:
        raise CorpusError(f"{path}: is damaged ({error!s}); {again}") from None
    if rows.dtype != ROW or rows.ndim != 1:
        raise CorpusError(f"{path}: is damaged (it holds {rows.dtype}); {again}")
    rows = np.asarray(rows)
    if len(rows) != metadata["num_documents"] or not _spans(rows, metadata["num_tokens"]):
        raise CorpusError(
            f"{path}: its {len(rows)} documents do not add up to the split's "
            f"{metadata['num_documents']} with {metadata['num_tokens']} tokens; {again}"
        )
    return Documents(rows, files, domains)


def _spans(rows: np.ndarray, num_tokens: int) -> bool:
    """Return whether the documents begin where the tokens do, and end where they end."""
    if not len(rows):
        return False
    first, last = rows[0], rows[-1]
    return not first["start"] and int(last["start"]) + int(last["num_tokens"]) + 1 == num_tokens
