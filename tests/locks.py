"""Locks as file systems of a cluster have them."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from unittest import mock


@contextlib.contextmanager
def flock_of_nfs() -> Iterator[list[int]]:
    """Refuse a shared lock of a file that cannot be read, and one alone of what cannot be written.

    Linux's client of NFS makes flock of locks on bytes, which want that.

    Yields
    ------
    list[int]
        The kinds of the locks that were taken, `fcntl.LOCK_SH` or `LOCK_EX`.
    """
    taken: list[int] = []
    flock = fcntl.flock

    def refusing(file, operation: int) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        refused = {fcntl.LOCK_SH: os.O_WRONLY, fcntl.LOCK_EX: os.O_RDONLY}
        kind = operation & (fcntl.LOCK_SH | fcntl.LOCK_EX)
        if mode == refused.get(kind):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)
        taken.append(kind)

    with mock.patch("fcntl.flock", refusing):
        yield taken
