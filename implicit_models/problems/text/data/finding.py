"""Which files of a source are text: of which kinds they are, and where they lie."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from implicit_models.problems.text.data.shards import CorpusError

SUFFIXES = (".txt", ".jsonl", ".jsonl.zst", ".parquet")

_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_MOST_KINDS = 10  # that are named

_KINDS = (
    "a source is a .txt file (one document), a .jsonl, .jsonl.zst or .parquet file (a document in "
    "every line or row), or a folder with such files, at any depth"
)


def find_files(source: Path) -> tuple[Path, list[str]]:
    """Find the text files of a source, in the order of their names.

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
    paths = (path for path in walk_files(source) if kind_of(path.name) is not None)
    names = sorted(path.relative_to(source).as_posix() for path in paths)
    if not names:
        raise CorpusError(f"{source}: holds no documents; {_KINDS}")
    return source, names


def unread(source: Path, besides: Path) -> str:
    """Return what a source has that is not read, besides one file, in words.

    That is files of other kinds, and links to folders: DVC does not see what lies behind these.
    """
    if not source.is_dir():
        return ""
    others = (path for path in walk_files(source) if kind_of(path.name) is None)
    counts = Counter(_suffix(path) for path in others if path != besides)
    said = [f"{count} {suffix}" for suffix, count in counts.most_common(_MOST_KINDS)]
    said += [f"{len(counts) - _MOST_KINDS} other kinds"] if len(counts) > _MOST_KINDS else []
    links = (Path(root, name) for root, folders, _ in _walk(source) for name in folders)
    said += [f"{path}, a link to a folder" for path in links if path.is_symlink()]
    return ", ".join(said)


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files under a folder; links to folders are not followed."""
    for root, _, files in _walk(folder):
        paths = (Path(root, name) for name in files if not name.startswith("."))
        yield from (path for path in paths if path.is_file())


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk through a folder and what it holds, but for what is hidden."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield root, folders, files


def _suffix(path: Path) -> str:
    """Return a file's suffix, that of what is compressed before it, or its name."""
    *_, before, last = ("", *path.suffixes) if path.suffixes else ("", path.name)
    is_word = before[1:].isalpha()
    return before + last if last in _COMPRESSED and is_word else last


def kind_of(name: str) -> str | None:
    """Return which of `SUFFIXES` a file has; None where it is not read."""
    return next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), None)
