"""Files that appear whole or not at all and outlast a loss of power, and their checksums."""

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PARTIAL = ".partial"  # the suffix of what is still being written


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size(path: Path) -> int:
    """Return the number of bytes of a file.

    Raises
    ------
    ValueError
        Where it is a device or anything else that is no file, and may have no end.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is no file")
    return found.st_size


def listed(content: Any) -> dict[str, dict[str, Any]]:
    """Return a list of files that lie beside it, or in folders beside it.

    Raises
    ------
    ValueError
        Where it is anything else than sizes and SHA-256 by names.
    """
    if not isinstance(content, dict):
        raise ValueError(f"it lists files in a {type(content).__name__}")
    for name, written in content.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"it lists {name!r}, which does not lie beside it")
        if not isinstance(written, dict) or not written.keys() >= {"bytes", "sha256"}:
            raise ValueError(f"it does not say what {name!r} was")
    return content


def sealed(content: Mapping[str, Any], indent: int | None = None) -> str:
    """Return an object as JSON, in one line unless it is indented, with a checksum of itself.

    >>> sealed({"step": 3})
    '{"step": 3, "checksum": "b3d60af3d8085271"}'
    """
    body = json.dumps(content, indent=indent, ensure_ascii=indent is None)[:-1].rstrip()
    comma = "," if content else ""
    before, after = (" ", "") if indent is None else ("\n" + " " * indent, "\n")
    return f'{body}{comma}{before}"checksum": "{_digest(body.encode())}"{after}}}'


def unsealed(text: str | bytes) -> dict[str, Any]:
    """Return the object that `sealed` has written.

    Raises
    ------
    ValueError
        Where anything of it has changed since, and where the text is anything else.
    """
    data = text.encode() if isinstance(text, str) else text
    start = max(data.rfind(b'"checksum"'), 0)
    body = data[:start].rstrip().removesuffix(b",")
    seal = re.fullmatch(rb'"checksum": "([0-9a-f]{16})"\s*\}\s*', data[start:])
    if seal is None or seal[1].decode() != _digest(body):
        raise ValueError("it has not the checksum that it was written with")
    try:
        return json.loads(body + b"}")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk, so that it outlasts a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there; what a link leads to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put a path into what the disk refuses without saying where, such as that it is full."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that is there whole or not at all, in UTF-8; what was there goes when it is.

    Raises
    ------
    OSError
        Naming the file, where it cannot be written, such as on a full disk; what was there stays.
    """
    partial = path.with_name(f".{path.name}{PARTIAL}")
    try:
        with naming(path):
            partial.unlink(missing_ok=True)  # of a process that was killed; or a link
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(partial, flags, 0o666), "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            sync(partial)
            partial.replace(path)
            sync(path.parent)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
