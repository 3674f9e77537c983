"""A user's own text, tasks and models, which git has not got: clones read them through links."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: Keys of entries, wherever they stand, whose values are files and folders, or names on the hub.
NAMING = ("source", "tokenizer", "model")
#: What stages write; in the last two a user may have other folders beside those of entries.
WRITTEN = ("checkpoints", "code", "results", "data", "models")


def link_own_files(root: Path, clone: Path, parameters: Mapping[str, Any]) -> None:
    """Link into a clone what entries name and only the repository has; git there ignores it."""
    paths = own_files(root, parameters)
    for path in paths:
        _link(root / path, clone / path)
    exclude = clone / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    known = exclude.read_text().splitlines() if exclude.exists() else []
    lines = dict.fromkeys([*known, *map(_pattern, paths)])
    exclude.write_text("".join(f"{line}\n" for line in lines))


def own_files(root: Path, parameters: Mapping[str, Any]) -> list[Path]:
    """Return the files and folders in a repository that entries name, but for what stages write.

    Returns
    -------
    list
        Of paths from the repository, a folder before what is in it.
    """
    tables = [table for table in parameters.values() if isinstance(table, Mapping)]
    entries = {str(name) for table in tables for name in table}
    paths = {Path(os.path.normpath(value)) for _, value in named(parameters)}
    own = [path for path in paths if _may_be_own(path, entries) and (root / path).exists()]
    return sorted(own, key=lambda path: path.parts)


def named(parameters: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys that may name files, dotted, and what they name."""
    for key, value in parameters.items():
        if isinstance(value, Mapping):
            yield from named(value, f"{prefix}{key}.")
        elif key in NAMING and isinstance(value, str) and value:
            yield f"{prefix}{key}", value


def leads_out(value: str) -> bool:
    """Return whether a path is relative and leaves the repository, where no clone could have it."""
    return os.path.normpath(value).split(os.sep)[0] == os.pardir


def _may_be_own(path: Path, entries: set[str]) -> bool:
    first, *others = path.parts or ("",)
    if not first or path.is_absolute() or leads_out(str(path)):
        return False
    if first in WRITTEN[-2:]:
        return bool(others) and others[0] not in entries
    return first not in WRITTEN


def _link(own: Path, link: Path) -> None:
    """Link what is not there; of a folder of which git has a part, file by file."""
    if not os.path.lexists(link):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(own.absolute(), target_is_directory=own.is_dir())
    elif link.is_dir() and not link.is_symlink():
        for path in own.rglob("*"):
            if path.is_file():
                _link(path, link / path.relative_to(own))


def _pattern(path: Path) -> str:
    """Return what git calls a path in its list of what it ignores."""
    return "/" + re.sub(r"([\\*?\[ ])", r"\\\1", path.as_posix())
