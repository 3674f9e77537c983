"""Text corpora on disk: documents in splits, as tokens, opened memory-mapped.

A folder holds ``manifest.json``, the files of the tokenizer and, for every split (``train``,
``validation``, ``test``), a folder that can be read alone: shards of tokens, what is known of the
documents, the tokenizer once more, and ``split.json``, which says what they are.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt

from implicit_models.data.manifests import read_manifest
from implicit_models.files import checksum
from implicit_models.problems.text.data.corpus_writing import (
    FORMAT_VERSION,
    MANIFEST,
    SPLIT_MANIFEST,
    write_corpus,
)
from implicit_models.problems.text.data.document_index import (
    DOCUMENTS,
    NAMES,
    Documents,
    open_documents,
)
from implicit_models.problems.text.data.packing import Packed, pack
from implicit_models.problems.text.data.processes import num_cores
from implicit_models.problems.text.data.shards import (
    CorpusError,
    TokenStream,
    open_shard,
    tokens_digest,
)
from implicit_models.problems.text.data.splitting import SPLITS
from implicit_models.problems.text.data.tokenisation import TOKENIZER_FILE, TokenizerError
from implicit_models.problems.text.data.vocabulary import tokenizer_digest

__all__ = ["Corpus", "CorpusError", "CorpusSplit", "Documents", "open_corpus", "write_corpus"]

_SHARED = (  # what all splits of a corpus have in common
    "format_version",
    "tokenizer_digest",
    "vocabulary_size",
    "end_of_text",
    "dtype",
    "sequence_length",
)
_OWN = (
    "num_documents",
    "num_tokens",
    "num_bytes",
    "documents_sha256",
    "names_sha256",
    "tokenizer_sha256",
    "shards",
)


class DocumentTokens(Sequence[np.ndarray]):
    """The tokens of each document of a split, read when they are asked for."""

    def __init__(self, split: "CorpusSplit") -> None:
        self._split = split

    def __len__(self) -> int:
        return len(self._split.documents)

    def __getitem__(self, index: Any) -> Any:
        positions = range(len(self))[index]
        if isinstance(positions, range):
            return [self._split.document(position) for position in positions]
        return self._split.document(positions)


@dataclass(frozen=True, eq=False)
class CorpusSplit:
    """A split of a corpus: its tokens in the files, and what is known of its documents.

    Attributes
    ----------
    folder
        Where it lies, a tokenizer's ``tokenizer.json`` and ``tokenizer_config.json`` included.
    metadata
        Content of ``split.json``.
    """

    folder: Path
    metadata: dict[str, Any]
    tokens: TokenStream

    @property
    def num_tokens(self) -> int:
        """Number of tokens, ends of text included."""
        return len(self.tokens)

    @functools.cached_property
    def documents(self) -> Documents:
        """Names, domains and sizes of the documents.

        Raises
        ------
        CorpusError
            If their file is missing, damaged or of other tokens.
        """
        return open_documents(self.folder, self.metadata, _again(self.folder.parent))

    @property
    def document_tokens(self) -> DocumentTokens:
        """The tokens of the documents, as a sequence of arrays."""
        return DocumentTokens(self)

    def document(self, index: int) -> UInt[np.ndarray, " num_tokens"]:
        """Return the tokens of one document, without the end of text, in their file."""
        start = int(self.documents.starts[index])
        return self.tokens[start : start + int(self.documents.num_tokens[index])]

    def stream(self, max_tokens: int | None = None) -> TokenStream:
        """Return all tokens in a row, or the first ones; an end of text follows each document."""
        return self.tokens.truncated(max_tokens)

    def packed(self, length: int) -> Packed:
        """Return sequences of ``length`` tokens, and of the tokens that follow each of these.

        They are cut from the whole stream, wherever its shards begin.

        Raises
        ------
        CorpusError
            If there is too little text for one.
        """
        packed = pack(self.tokens, length)
        if not len(packed.inputs):
            raise CorpusError(
                f"{self.folder}: too little text for one sequence of {length} tokens and its last "
                f"label: there are {self.num_tokens} tokens; add text, or lower the length"
            )
        return packed

    def verify(self) -> None:
        """Compare the content of every file with its digest, on all cores.

        Raises
        ------
        CorpusError
            Naming the first file whose content has changed, or that the tokenizer is another one.
        """
        again = _again(self.folder.parent)
        for key, name in (
            ("names_sha256", NAMES),
            ("tokenizer_sha256", TOKENIZER_FILE),
            ("documents_sha256", DOCUMENTS),
        ):
            path = self.folder / name
            if not path.is_file():
                raise CorpusError(f"{path}: no such file; {again}")
            _compare(path, checksum(path), self.metadata[key])
        found = _tokenizer_digest(self.folder, again)
        if found != self.metadata["tokenizer_digest"]:
            raise CorpusError(
                f"{self.folder / SPLIT_MANIFEST}: is of another tokenizer: its tokenizer_digest is "
                f"{self.metadata['tokenizer_digest']}, that of {TOKENIZER_FILE} beside it {found}; "
                f"{again}"
            )
        entries = self.metadata["shards"]
        for entry, digest in zip(entries, _digests(self.tokens.shards), strict=True):
            _compare(self.folder / entry["file"], digest, entry["sha256"])


@dataclass(frozen=True, eq=False)
class Corpus:
    """A corpus on disk, or some splits of it, whose shapes and dtypes have been checked.

    Attributes
    ----------
    metadata
        What all its splits have in common.
    """

    directory: Path
    metadata: dict[str, Any]
    splits: Mapping[str, CorpusSplit]

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id of the tokenizer."""
        return self.metadata["vocabulary_size"]

    @property
    def end_of_text(self) -> int:
        """Id of the token behind every document."""
        return self.metadata["end_of_text"]

    @property
    def tokenizer_digest(self) -> str:
        """`TextTokenizer.digest` of the tokenizer."""
        return self.metadata["tokenizer_digest"]

    @property
    def sequence_length(self) -> int:
        """Tokens of a sequence that the corpus was made for."""
        return self.metadata["sequence_length"]

    def split(self, name: str) -> CorpusSplit:
        """Return a split by its name: ``train``, ``validation`` or ``test``."""
        if name not in self.splits:
            raise CorpusError(_no_split(name, self.splits, self.directory))
        return self.splits[name]

    def verify(self) -> None:
        """Compare the content of every file of every split with its digest.

        Raises
        ------
        CorpusError
            Naming the first file whose content has changed.
        """
        for split in self.splits.values():
            split.verify()


def open_corpus(directory: Path, names: Iterable[str] | None = None) -> Corpus:
    """Open the corpus that `write_corpus` has written, memory-mapped and read-only.

    Sizes and dtypes are checked; the content of the files is not read (`Corpus.verify` does that).

    Parameters
    ----------
    names
        The splits to open, for which nothing but their own folders is read; all of them where not
        given.

    Raises
    ------
    CorpusError
        If the folder or a file is missing, damaged, or of another version.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise CorpusError(f"{directory}: no such folder; {_again(directory)}")
    chosen = (
        _read_json(directory / MANIFEST, directory, ("splits",))["splits"]
        if names is None
        else names
    )
    splits = {name: _open_split(directory, name) for name in chosen}
    if not splits:
        raise CorpusError(
            f"{directory}: no split is asked for, or there is none; {_again(directory)}"
        )
    (first, split), *others = splits.items()
    metadata = {key: split.metadata[key] for key in _SHARED}
    for name, other in others:
        for key in _SHARED:
            if other.metadata[key] != metadata[key]:
                raise CorpusError(
                    f"{directory}: {key} is {metadata[key]!r} in {first} and "
                    f"{other.metadata[key]!r} in {name}: they were not written together; "
                    f"{_again(directory)}"
                )
    return Corpus(directory, metadata, splits)


def _again(directory: Path) -> str:
    name = directory.name
    return f"`dvc repro prepare_corpus@{name}` writes it, or prepare_hub_corpus@{name}"


def _no_split(name: str, names: Iterable[str], directory: Path) -> str:
    there = ", ".join(names) or "none"
    return (
        f"{directory}: no split {name!r}; there are {there}: a split is written where the corpus's "
        f"parameters ask for one; {_again(directory)}"
    )


def _read_json(path: Path, directory: Path, keys: Iterable[str]) -> dict[str, Any]:
    return read_manifest(
        path,
        version=FORMAT_VERSION,
        keys=(*_SHARED, *keys),
        what="corpus",
        again=_again(directory),
        error=CorpusError,
    )


def _open_split(directory: Path, name: str) -> CorpusSplit:
    folder = directory / name
    if name not in SPLITS or not folder.is_dir():
        there = [split for split in SPLITS if (directory / split).is_dir()]
        raise CorpusError(_no_split(name, there, directory))
    metadata = _read_json(folder / SPLIT_MANIFEST, directory, _OWN)
    try:
        shards = [
            open_shard(
                folder / entry["file"], num_tokens=entry["num_tokens"], dtype=metadata["dtype"]
            )
            for entry in metadata["shards"]
        ]
    except CorpusError as error:
        raise CorpusError(f"{error}; {_again(directory)}") from None
    except (KeyError, TypeError) as error:
        raise CorpusError(
            f"{folder / SPLIT_MANIFEST}: shards are not described as they should be ({error!s}); "
            f"{_again(directory)}"
        ) from None
    tokens = TokenStream(shards)
    if len(tokens) != metadata["num_tokens"] or not shards:
        raise CorpusError(
            f"{folder / SPLIT_MANIFEST}: num_tokens is {metadata['num_tokens']!r}, the shards have "
            f"{len(tokens)}; {_again(directory)}"
        )
    return CorpusSplit(folder, metadata, tokens)


def _tokenizer_digest(folder: Path, again: str) -> str | None:
    try:
        return tokenizer_digest(folder)
    except TokenizerError as error:
        raise CorpusError(f"{error}; {again}") from None


def _digests(shards: Sequence[UInt[np.ndarray, " num_tokens"]]) -> Iterator[str]:
    """Digest shards, several at a time."""
    executor = ThreadPoolExecutor(num_cores())  # hashlib lets go of the interpreter
    try:
        yield from executor.map(tokens_digest, shards)
    finally:
        executor.shutdown(cancel_futures=True)


def _compare(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise CorpusError(
            f"{path}: the content has changed: its SHA-256 is {found}, {expected} was written; "
            f"{_again(path.parent.parent)}"
        )
