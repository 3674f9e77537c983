"""A disk that is full or has no locks: how it is recognised, and what every command then says."""

import errno
import shutil
from pathlib import Path

MAKE_ROOM = "the disk is full: make room (`dvc gc --workspace --dry` lists what DVC could drop)"
NO_FLOCK = (
    "its file system has no flock, which flows need; mount it with locks (Lustre: `flock`), or "
    "work in a clone on another disk"
)
SIGNS = ("No space left on device", "Disk quota exceeded")  # in what programs print

_LEAST_BYTES = 16 << 20  # less than Prefect's database needs to grow


def refused(error: OSError) -> bool:
    """Return whether the system has refused to write because a disk or a quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def has_no_flock(error: OSError) -> bool:
    """Return whether a file could not be locked because its file system has no flock."""
    return error.errno in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def is_full(folder: Path) -> bool:
    """Return whether the disk of a folder is nearly full."""
    try:
        return shutil.disk_usage(folder).free < _LEAST_BYTES
    except OSError:
        return False
