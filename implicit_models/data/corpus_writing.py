"""Write a text corpus: which documents there are, where each belongs, and its tokens.

What is written is described, and read, in `corpora`.
"""

import contextlib
import fnmatch
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from implicit_models.data.documents import Document, SourceFile, find_files, read_documents
from implicit_models.data.parameters import CorpusParameters, HeldOutParameters
from implicit_models.data.shards import CorpusError, ShardWriter
from implicit_models.data.tokenisation import (
    CONFIGURATION_FILE,
    TOKENIZER_FILE,
    TextTokenizer,
    load_tokenizer,
)
from implicit_models.parameters import ParameterError

FORMAT_VERSION = 1
SPLITS = ("train", "validation", "test")
MANIFEST = "manifest.json"
SPLIT_MANIFEST = "split.json"
DOCUMENTS = "documents.jsonl"

_BATCH_BYTES = 2**21  # of text that is tokenised together


def write_corpus(parameters: CorpusParameters, directory: Path) -> dict[str, Any]:
    """Tokenise the documents of a source and write the splits that they fall into.

    Documents of the files named for a test or validation split belong to it; so does every other
    document with the very same text. Of the documents that remain, a digest of seed and text picks
    the held-out shares; what is left is the training split. So no text is in two splits, and a
    document stays where it is when others come or go. A split that is not asked for, or a training
    split for which nothing is left, is not written.

    Files appear under their names only when all are complete, the manifest last.

    Returns
    -------
    dict
        The manifest, as written.

    Raises
    ------
    CorpusError
        If the source is missing, holds no documents, or has one that cannot be read.
    ParameterError
        If a split comes out empty or too short for one sequence, or a pattern names no file.
    TokenizerError
        If the tokenizer cannot be found, or has no end-of-text token.
    """
    tokenizer = load_tokenizer(parameters.tokenizer)
    end_of_text = tokenizer.end_of_text
    files = find_files(Path(parameters.source).expanduser())
    named = _named_files(parameters, files)
    directory = Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        writers = _write_documents(parameters, tokenizer, end_of_text, named, partial)
        _check_splits(parameters, writers)
        manifest = _write_manifests(parameters, tokenizer, end_of_text, writers, partial)
        _move_into_place(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(eq=False)
class _SplitWriter:
    """A split that grows: the batch to be tokenised next, and what has been written."""

    folder: Path
    tokenizer: TextTokenizer
    shards: ShardWriter
    index: Any  # the open file of documents.jsonl
    batch: list[Document] = field(default_factory=list)
    batch_bytes: int = 0
    num_documents: int = 0
    num_bytes: int = 0

    def add(self, document: Document) -> None:
        self.batch.append(document)
        self.batch_bytes += document.num_bytes
        if self.batch_bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        batch = self.batch
        self.batch, self.batch_bytes = [], 0
        encoded = self.tokenizer.encode([document.text for document in batch])
        for document, tokens in zip(batch, encoded, strict=True):
            if not len(tokens):
                raise CorpusError(
                    f"{document.name}: nothing is left of the document once the tokenizer "
                    f"{self.tokenizer.name!r} has read it; remove it, or choose another tokenizer"
                )
            entry = {
                "name": document.name,
                "domain": document.domain,
                "num_bytes": document.num_bytes,
                "num_tokens": len(tokens),
                "start": self.shards.append(tokens),
            }
            self.index.write(json.dumps(entry, ensure_ascii=False) + "\n")
            self.num_documents += 1
            self.num_bytes += document.num_bytes

    def close(self) -> None:
        """Let go of the files; what has not been flushed is lost."""
        self.index.close()
        self.shards.close()


def _named_files(
    parameters: CorpusParameters, files: list[SourceFile]
) -> dict[str, list[SourceFile]]:
    """Files of each split by the patterns, the others under ``train``; tests come first."""
    named: dict[str, list[SourceFile]] = {"test": [], "validation": [], "train": []}
    held_out = {"test": parameters.test, "validation": parameters.validation}
    for file in files:
        patterns = {
            name: pattern
            for name, split in held_out.items()
            for pattern in split.files
            if fnmatch.fnmatchcase(file.name, pattern)
        }
        if len(patterns) > 1:
            raise ParameterError(
                f"validation.files and test.files both name {file.name}, by "
                f"{patterns['validation']!r} and {patterns['test']!r}; "
                "a file belongs to one split"
            )
        named[next(iter(patterns), "train")].append(file)
    for name, split in held_out.items():
        for pattern in split.files:
            if not any(fnmatch.fnmatchcase(file.name, pattern) for file in named[name]):
                shown = ", ".join(file.name for file in files[:8])
                raise ParameterError(
                    f"{name}.files: {pattern!r} names no file under {parameters.source}, where "
                    f"there are {shown}{' ...' if len(files) > 8 else ''}"
                )
    return named


def _write_documents(
    parameters: CorpusParameters,
    tokenizer: TextTokenizer,
    end_of_text: int,
    named: Mapping[str, list[SourceFile]],
    folder: Path,
) -> dict[str, _SplitWriter]:
    """Write the tokens of all documents; returns what was written of each split."""
    writers: dict[str, _SplitWriter] = {}
    total = sum(file.path.stat().st_size for files in named.values() for file in files)
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(
            tqdm(total=total, desc="corpus", unit="B", unit_scale=True, disable=None)
        )
        for name, document in _assigned(parameters, named, tokenizer.max_bytes):
            if name not in writers:
                writers[name] = _split_writer(folder / name, tokenizer, end_of_text)
                stack.callback(writers[name].close)
            writers[name].add(document)
            bar.update(document.num_bytes)
        for writer in writers.values():
            writer.flush()
    return {name: writers[name] for name in SPLITS if name in writers}


def _assigned(
    parameters: CorpusParameters, named: Mapping[str, list[SourceFile]], max_bytes: int
) -> Iterator[tuple[str, Document]]:
    """Every document and its split; all files are read once, those named for a split first."""
    reserved: dict[bytes, str] = {}
    for place, files in named.items():
        for file in files:
            for document in read_documents(
                file,
                text_field=parameters.text_field,
                domain_field=parameters.domain_field,
                max_bytes=max_bytes,
            ):
                digest = _text_digest(document.text, parameters.seed)
                if place == "train":
                    name = reserved.get(digest) or _drawn_split(digest, parameters)
                else:
                    name = reserved.setdefault(digest, place)
                yield name, document


def _split_writer(folder: Path, tokenizer: TextTokenizer, end_of_text: int) -> _SplitWriter:
    folder.mkdir()
    return _SplitWriter(
        folder=folder,
        tokenizer=tokenizer,
        shards=ShardWriter(folder, tokenizer.dtype, end_of_text),
        index=open(folder / DOCUMENTS, "w", encoding="utf-8"),
    )


def _text_digest(text: str, seed: int) -> bytes:
    digest = hashlib.blake2b(f"{seed}\0".encode(), digest_size=16)
    digest.update(text.encode())
    return digest.digest()


def _drawn_split(digest: bytes, parameters: CorpusParameters) -> str:
    """Test documents lie at one end, validation's at the other: one share moves no other's."""
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < parameters.test.share:
        return "test"
    return "validation" if position >= 1 - parameters.validation.share else "train"


def _check_splits(parameters: CorpusParameters, writers: Mapping[str, _SplitWriter]) -> None:
    held_out = {"validation": parameters.validation, "test": parameters.test}
    total = sum(writer.num_documents for writer in writers.values())
    for name, split in held_out.items():
        if split.is_asked_for and name not in writers:
            raise ParameterError(_came_out_empty(name, split, total))
    for name, writer in writers.items():
        if writer.shards.num_tokens <= parameters.sequence_length:
            raise ParameterError(
                f"sequence_length = {parameters.sequence_length} is more than the {name} split "
                f"has: {writer.shards.num_tokens} tokens in {writer.num_documents} documents, one "
                "of which is the last label; lower it, or give the split more text"
            )


def _came_out_empty(name: str, split: HeldOutParameters, num_documents: int) -> str:
    if split.files:  # all of what its files hold was named for the test before
        return f"{name}.files: every document there is one of the test split's as well"
    return (
        f"{name}.share = {split.share} of {num_documents} documents came out as none; raise it, "
        f"name files in {name}.files, divide the text into more documents, or change seed"
    )


def _write_manifests(
    parameters: CorpusParameters,
    tokenizer: TextTokenizer,
    end_of_text: int,
    writers: Mapping[str, _SplitWriter],
    folder: Path,
) -> dict[str, Any]:
    tokenizer.save(folder)
    shared = {
        "format_version": FORMAT_VERSION,
        "tokenizer_digest": tokenizer.digest,
        "vocabulary_size": tokenizer.vocabulary_size,
        "end_of_text": end_of_text,
        "dtype": tokenizer.dtype.name,
        "sequence_length": parameters.sequence_length,
    }
    splits = {}
    for name, writer in writers.items():
        for file in (TOKENIZER_FILE, CONFIGURATION_FILE):
            shutil.copyfile(folder / file, writer.folder / file)
        shards = writer.shards.close()
        numbers = {
            "num_documents": writer.num_documents,
            "num_tokens": writer.shards.num_tokens,
            "num_bytes": writer.num_bytes,
        }
        own = {
            "documents_sha256": file_digest(writer.folder / DOCUMENTS),
            "tokenizer_sha256": file_digest(folder / TOKENIZER_FILE),
            "shards": shards,
        }
        _write_json(writer.folder / SPLIT_MANIFEST, shared | numbers | own)
        splits[name] = numbers
    manifest = shared | {
        "source": parameters.source,
        "text_field": parameters.text_field,
        "domain_field": parameters.domain_field,
        "tokenizer": parameters.tokenizer,
        "seed": parameters.seed,
        "splits": splits,
    }
    _write_json(folder / MANIFEST, manifest)
    return manifest


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _move_into_place(partial: Path, directory: Path) -> None:
    """Replace the content of the folder; without its manifest it counts as incomplete."""
    directory.mkdir(exist_ok=True)
    (directory / MANIFEST).unlink(missing_ok=True)
    for name in SPLITS:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory / name)
    for path in sorted(partial.iterdir()):
        if path.name != MANIFEST:
            os.replace(path, directory / path.name)
    os.replace(partial / MANIFEST, directory / MANIFEST)
