"""Files that outlast a loss of power, and their checksums."""

import hashlib
import os
from pathlib import Path

PARTIAL = ".partial"  # the suffix of what is still being written


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk, so that it outlasts a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
