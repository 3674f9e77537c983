"""A folder of data that appears as a whole, and arrays in it that are what its manifest says."""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from implicit_models.data.arrays import open_array
from implicit_models.files import PARTIAL, remove

_PATIENCE_SECONDS = 5.0  # a process that is being killed is still there for a moment
_POLL_SECONDS = 0.1


class FolderBusyError(RuntimeError):
    """Another process is writing the same folder."""


@contextmanager
def written_whole(folder: Path, manifest: str, is_part: Callable[[str], bool]) -> Iterator[Path]:
    """Yield a folder to write into, which then takes the place of another; see `take_place`.

    After an error that other one is as it was. Errors as of `partial_folder`.
    """
    with partial_folder(folder) as partial:
        yield partial
        take_place(partial, folder, manifest, is_part)


@contextmanager
def partial_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside one that is to be written, which is gone at the end.

    What a process that was killed has left there goes first. File systems that have no locks are
    taken as they are.

    Raises
    ------
    FolderBusyError
        Where another process is writing the same folder.
    """
    partial = folder.with_name(f".{folder.name}{PARTIAL}")
    with ExitStack() as stack:
        stack.callback(os.close, _locked(partial, folder))
        stack.callback(shutil.rmtree, partial, ignore_errors=True)
        for left in list(partial.iterdir()):
            remove(left)
        yield partial


def _locked(partial: Path, folder: Path) -> int:
    """Return the descriptor of a folder that is made where it is missing, and locked with it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            partial.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except (FileExistsError, FileNotFoundError) as error:
            is_file = os.path.lexists(partial) and not partial.is_dir()
            if is_file or error.filename != os.fspath(partial) or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
            continue  # removed by another at its end, just now
        if _has_lock(descriptor) and _is_at(descriptor, partial):
            return descriptor
        os.close(descriptor)  # another's, or removed by it at its end
        if time.monotonic() > deadline:
            raise FolderBusyError(
                f"{folder}: another process is writing it; wait for its end, or end it"
            )
        time.sleep(_POLL_SECONDS)


def _has_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _is_at(descriptor: int, partial: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(partial))
    except FileNotFoundError:
        return False


def take_place(complete: Path, folder: Path, manifest: str, is_part: Callable[[str], bool]) -> None:
    """Replace the content of a folder; without its manifest, which comes last, it counts as none.

    Parameters
    ----------
    is_part
        Whether a name is that of a file or folder of such data; what has another name stays.
    """
    folder.mkdir(exist_ok=True)
    (folder / manifest).unlink(missing_ok=True)
    for stale in list(folder.iterdir()):
        if is_part(stale.name):
            if stale.is_dir() and not stale.is_symlink():
                shutil.rmtree(stale)
            else:
                stale.unlink()
    for part in sorted(complete.iterdir()):
        if part.name != manifest:
            os.replace(part, folder / part.name)
    os.replace(complete / manifest, folder / manifest)


def digest(array: np.ndarray) -> str:
    """Return the SHA-256 of an array's content."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def check_digests(
    folder: Path,
    splits: Mapping[str, object],
    kinds: Iterable[str],
    listed: Mapping[str, Mapping[str, Any]],
    *,
    again: str,
    error: type[ValueError],
) -> None:
    """Compare the content of every array of some splits with its digest in a manifest.

    Parameters
    ----------
    folder
        Of which each split is a folder, with a file for each kind of array.
    splits
        With an attribute for each kind.
    listed
        What the manifest says of each split, ``KIND_digest`` included.
    again, error
        As in `open_listed_array`; the error names the first file whose content has changed.
    """
    for name, split in splits.items():
        for kind in kinds:
            if digest(getattr(split, kind)) != listed[name][f"{kind}_digest"]:
                path = folder / name / f"{kind}.npy"
                raise error(f"{path}: the content has changed; {again}")


def open_listed_array(
    path: Path,
    shape: tuple[int, ...],
    dtype: str | None = None,
    *,
    again: str,
    error: type[ValueError],
) -> np.ndarray:
    """Open an array that a manifest lists, memory-mapped; its content is not read.

    Parameters
    ----------
    dtype
        None allows any.
    again
        How to have it written again; the end of every message.
    error
        What to raise where it is missing, damaged, or of another shape or dtype.
    """
    try:
        array = open_array(path)
    except FileNotFoundError:
        raise error(f"{path}: no such file; {again}") from None
    except (ValueError, OSError) as problem:
        raise error(f"{path}: is truncated or not a .npy file ({problem}); {again}") from None
    for what, found, expected in (
        ("shape", array.shape, shape),
        ("dtype", array.dtype.name, dtype or array.dtype.name),
    ):
        if found != expected:
            raise error(f"{path}: the {what} is {found}, metadata says {expected}; {again}")
    return array
