"""Comparing the data with its checksums when a training begins, and again when it goes on.

Reading takes some 1.5 GB a second on each core, so a training's data is compared as a whole each
time it starts as long as that takes seconds. More of it is compared again only where a file's
size or time is not what it was: a look at each file finds out, and hundreds of gigabytes, which
take minutes, are not read every time that a preempted training goes on.
"""

import logging
from pathlib import Path
from typing import Any

from implicit_models.files import sealed, unsealed
from implicit_models.problems.answers import TrainingData
from stages.common import write_text

ALWAYS = 8 * 2**30  # bytes

_FILE = "data.json"

log = logging.getLogger(__name__)


def verify_data(data: TrainingData, folder: Path) -> None:
    """Compare the data with its checksums, and note in a folder of checkpoints that it was done.

    Raises
    ------
    CorpusError, DataError
        Naming the first file whose content has changed.
    """
    note = folder / _FILE
    files = {path.as_posix(): path.stat() for path in data.files()}
    found = {name: [file.st_size, file.st_mtime_ns] for name, file in files.items()}
    if sum(size for size, _ in found.values()) > ALWAYS and note.exists():
        if _read(note) == found:
            return
        log.info("the training data's files are not as they were; comparing their checksums")
    data.verify()
    write_text(note, sealed(found, indent=2))


def _read(note: Path) -> dict[str, Any] | None:
    try:
        return unsealed(note.read_bytes())
    except ValueError:
        return None
