"""Whether files are what was written: a list of checksums beside them, compared before reading.

The list is written last, so that without it a folder is incomplete, and has a checksum of its own.
"""

import errno
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from implicit_models.files import (
    PARTIAL,
    checksum,
    listed,
    naming,
    remove,
    sealed,
    size,
    sync,
    unsealed,
    write_whole,
)

CHECKSUMS = "checksums.json"  # of a folder
SUFFIX = "_checksums.json"  # of what one stage of several has written into it, after its name
_AGAIN = "`dvc checkout --force` brings back what a stage has written; fetch other files again"


class DamagedFileError(ValueError):
    """A file is not what was written."""


def write_checksums(path: Path, files: Iterable[Path]) -> None:
    """Write the sizes and SHA-256 of files that lie beside the list, or in folders beside it."""
    names = {file.relative_to(path.parent).as_posix(): file for file in files}
    content = {
        name: {"bytes": names[name].stat().st_size, "sha256": checksum(names[name])}
        for name in sorted(names)
    }
    own = {"folder": path.parent.as_posix()} if _is_in_project(path) else {}
    write_whole(path, sealed({"files": content, **own}, indent=2) + "\n")


def read_checksums(path: Path) -> Mapping[str, Any]:
    """Read what `write_checksums` has written.

    Raises
    ------
    DamagedFileError
        Where anything of it has changed since, or it was written for another folder of the project.
    """
    try:
        content = unsealed(path.read_bytes())
        files = listed(content.get("files"))
    except ValueError as error:
        raise DamagedFileError(f"{path} is damaged: {error}; {_AGAIN}") from None
    folder = path.parent.as_posix()
    if _is_in_project(path) and (written_for := content.get("folder", folder)) != folder:
        raise DamagedFileError(f"{folder} is a copy of {written_for}, as {path} says; {_AGAIN}")
    return files


def _is_in_project(path: Path) -> bool:
    """Return whether a path is of an entry's models or results, which only its stages write."""
    return path.parts[0] in ("models", "results")


def compare(file: Path, written: Mapping[str, Any]) -> None:
    """Compare a file with its entry in a list of checksums.

    Raises
    ------
    DamagedFileError
        Where it is missing or has changed: what was found, and what was written.
    """
    try:
        found_size = size(file)
    except FileNotFoundError:
        raise DamagedFileError(f"{file} is missing; {_AGAIN}") from None
    except ValueError as error:
        raise DamagedFileError(f"{error}; {_AGAIN}") from None
    if found_size != written["bytes"]:
        raise DamagedFileError(
            f"{file} has {found_size} bytes, {written['bytes']} were written; {_AGAIN}"
        )
    found = checksum(file)
    if found != written["sha256"]:
        raise DamagedFileError(
            f"{file}: the content has changed: its SHA-256 is {found}, {written['sha256']} was "
            f"written; {_AGAIN}"
        )


def compare_folder(folder: Path, names: Collection[str] | None = None) -> None:
    """Compare the files of a folder with its list; one that has none is from elsewhere, and passes.

    Parameters
    ----------
    names
        Of the files; all of them where not given.

    Raises
    ------
    DamagedFileError
        Naming the first that is not what was written.
    """
    path = folder / CHECKSUMS
    if path.exists():
        for name, written in read_checksums(path).items():
            if names is None or name in names:
                compare(folder / name, written)


@contextmanager
def filled(folder: Path, keep: Collection[str] = ()) -> Iterator[Path]:
    """Yield an empty folder, whose files are the folder's own when all are written.

    Until then the folder stays as it is; the list of checksums comes last.

    Parameters
    ----------
    keep
        Names in the folder that stay; others go.

    Raises
    ------
    OSError
        Naming a path, where something cannot be written, such as on a full disk.
    """
    if folder.is_symlink():
        raise OSError(errno.ELOOP, f"it leads to {folder.resolve()}, and is replaced", str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}{PARTIAL}")
    remove(partial)  # of a process that was killed
    try:
        with naming(folder):
            partial.mkdir()
            yield partial
            for file in partial.iterdir():
                sync(file)
            for old in folder.iterdir():
                if old.name not in keep:
                    remove(old)
            for file in sorted(partial.iterdir()):
                file.replace(folder / file.name)
            write_checksums(folder / CHECKSUMS, folder.iterdir())
    finally:
        shutil.rmtree(partial, ignore_errors=True)
