"""Which files of a source are text: of which kinds they are, and where they lie."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from implicit_models.problems.text.data.shards import CorpusError

SUFFIXES = (".txt", ".jsonl", ".jsonl.zst", ".parquet")

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


def unread_kinds(source: Path, besides: Path) -> str:
    """Return how many files of which other kinds a source has, besides one, in words."""
    if not source.is_dir():
        return ""
    others = (path for path in walk_files(source) if kind_of(path.name) is None)
    counts = Counter("".join(p.suffixes[-2:]) or p.name for p in others if p != besides)
    return ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files under a folder but hidden ones, each folder once; links are followed."""
    seen: set[tuple[int, int]] = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(root)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(root, name) for name in files if not name.startswith("."))
        yield from (path for path in paths if path.is_file())


def kind_of(name: str) -> str | None:
    """Return which of `SUFFIXES` a file has; None where it is not read."""
    return next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), None)
