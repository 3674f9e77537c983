"""One training of an entry at a time: two would write each other's checkpoints."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

_PATIENCE_SECONDS = 5.0  # one that is being killed is still there for a moment
_POLL_SECONDS = 0.1


class TrainingBusyError(RuntimeError):
    """Another process is at the same training."""


@contextlib.contextmanager
def trained_by_one(folder: Path) -> Iterator[None]:
    """Keep others from training with checkpoints in a folder, which is made where it is missing.

    The lock ends with the process, however that ends. File systems that have no such locks are
    taken as they are.

    Raises
    ------
    TrainingBusyError
        Where another process has the lock, and keeps it.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with _opened(folder) as descriptor:
            _lock(descriptor, folder)
            if not _is_at(descriptor, folder):  # who had it before has removed it
                continue
            yield
            return


def remove_unused(folder: Path) -> None:
    """Remove a folder of checkpoints that is empty and that nobody trains with, this process too.

    Where there are no locks it stays.
    """
    with contextlib.suppress(OSError), _opened(folder) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.rmdir()


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False


def _lock(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TrainingBusyError(
                    f"another process trains with the checkpoints in {folder}; wait until it has "
                    "ended, or end it: the same command then goes on from its last checkpoint"
                ) from None
            time.sleep(_POLL_SECONDS)
        except OSError:
            return None
