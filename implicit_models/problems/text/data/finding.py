"""Which files of a source are text: of which kinds they are, and where they lie."""

import os
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path

from implicit_models.problems.text.data.shards import CorpusError

SUFFIXES = (".txt", ".jsonl", ".jsonl.zst", ".parquet")

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_MOST_KINDS = 10  # that are named
_BESIDE_TOKENIZERS = ("tokenizer.json", "merges.txt", "vocab.txt")

_KINDS = (
    "a source is a .txt file (one document), a .jsonl, .jsonl.zst or .parquet file (a document in "
    "every line or row), or a folder with such files, at any depth"
)


def find_files(source: Path, tokenizer: str) -> tuple[Path, list[str]]:
    """Find the text files of a source, in the order of their names.

    Parameters
    ----------
    tokenizer
        Of the corpus. Its files are no text; of a folder inside the source that is all it holds.

    Returns
    -------
    tuple
        The folder, and the paths of the files under it, with slashes.

    Raises
    ------
    CorpusError
        If there is nothing, or nothing that is read.
    """
    if source.is_file():
        if kind_of(source.name) is None:
            raise CorpusError(f"{source}: is of no kind that is read; {_KINDS}")
        return source.parent, [source.name]
    if not source.is_dir():
        raise CorpusError(f"{source}: no such file or folder; {_KINDS}")
    paths = (path for path in walk_files(source, tokenizer) if kind_of(path.name) is not None)
    names = sorted(path.relative_to(source).as_posix() for path in paths)
    if not names:
        raise CorpusError(f"{source}: holds no documents; {_KINDS}")
    return source, names


def unread(source: Path, tokenizer: str) -> str:
    """Return what a source has that is not read, in words.

    That is files of other kinds, a folder that is the tokenizer's, and links to folders: DVC does
    not see what lies behind these.
    """
    if not source.is_dir():
        return ""
    own = _of_tokenizer(source, tokenizer)
    others = (path for path in walk_files(source, tokenizer) if kind_of(path.name) is None)
    counts = Counter(map(_suffix, others))
    said = [f"{count} {suffix}" for suffix, count in counts.most_common(_MOST_KINDS)]
    said += [f"{len(counts) - _MOST_KINDS} other kinds"] if len(counts) > _MOST_KINDS else []
    said += [f"{path}, the tokenizer's folder" for path in own if path.is_dir()]
    links = (Path(root, name) for root, folders, _ in _walk(source, own) for name in folders)
    said += [f"{path}, a link to a folder" for path in links if path.is_symlink()]
    return ", ".join(said)


def walk_files(folder: Path, tokenizer: str) -> Iterator[Path]:
    """Yield the files under a folder but a tokenizer's; links to folders are not followed."""
    for root, _, files in _walk(folder, _of_tokenizer(folder, tokenizer)):
        paths = (Path(root, name) for name in files)
        yield from (path for path in paths if path.is_file())


def _walk(folder: Path, besides: Container[Path]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk through a folder and what it holds, but for what is hidden, or named."""
    for root, folders, files in os.walk(folder):
        for names in (folders, files):
            shown = (name for name in names if not name.startswith("."))
            names[:] = sorted(name for name in shown if Path(root, name) not in besides)
        yield root, folders, files


def _of_tokenizer(source: Path, tokenizer: str) -> set[Path]:
    """Return a tokenizer's folder inside a source, or its files where texts may lie beside them."""
    path, root = Path(os.path.expanduser(tokenizer)).resolve(), source.resolve()
    if tokenizer == "bytes" or not path.exists() or not path.is_relative_to(root):
        return set()
    inside = source / path.relative_to(root)
    if path == root:
        return {inside / name for name in _BESIDE_TOKENIZERS}
    beside = set() if path.is_dir() else {inside.with_name(name) for name in _BESIDE_TOKENIZERS}
    return {inside, *beside}


def _suffix(path: Path) -> str:
    """Return a file's suffix, that of what is compressed before it, or its name."""
    *_, before, last = ("", *path.suffixes) if path.suffixes else ("", path.name)
    is_word = before[1:].isalpha()
    return before + last if last in _COMPRESSED and is_word else last


def kind_of(name: str) -> str | None:
    """Return which of `SUFFIXES` a file has; None where it is not read."""
    return next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), None)
