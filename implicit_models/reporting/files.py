"""Reading what stages left; a file that is missing or damaged is named with the stage to run."""

import csv
import json
import math
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from implicit_models.checksums import SUFFIX, DamagedFileError, compare, read_checksums


class MissingResultError(FileNotFoundError):
    """A run has left no results, or not all of them.

    Attributes
    ----------
    command
        What makes them.
    is_lost
        Whether a stage has written what is missing.
    """

    def __init__(self, message: str, command: str, *, is_lost: bool = False) -> None:
        super().__init__(message)
        self.command = command
        self.is_lost = is_lost


@contextmanager
def noting_missing(name: str, missing: MutableMapping[str, str] | None) -> Iterator[None]:
    """Note an entry without all of its results yet, with the command that makes what is missing.

    Where there is nowhere to note it, and where results were there and are gone, it is an error.
    """
    try:
        yield
    except MissingResultError as error:
        if missing is None or error.is_lost:
            raise
        missing[name] = error.command


def read_json(path: Path, stage: str) -> dict[str, Any]:
    """Read a file that ``stage`` writes; infinities in it become NaN."""
    return json.loads(_read_text(path, stage), parse_constant=lambda _: math.nan)


def read_csv(path: Path, stage: str) -> list[dict[str, str]]:
    """Read the rows of a file that ``stage`` writes."""
    return list(csv.DictReader(_read_text(path, stage).splitlines()))


class DamagedResultError(ValueError):
    """A file of results is not what a stage has written."""


def _read_text(path: Path, stage: str) -> str:
    command = f"dvc repro {stage}@{path.parent.name}"
    written_by = f"the stage {stage}@{path.parent.name} writes it: `{command}`"
    if not path.is_file():
        message = f"{path} does not exist; {written_by}"
        raise MissingResultError(message, command, is_lost=_is_listed(path))
    try:
        _compare(path)
    except DamagedFileError as error:
        raise DamagedResultError(f"{error}; {written_by}") from None
    return path.read_bytes().decode("utf-8")


def _is_listed(path: Path) -> bool:
    """Return whether a stage has listed a file among those that it has written."""
    for each in path.parent.glob(f"*{SUFFIX}"):
        with suppress(DamagedFileError):
            if path.name in read_checksums(each):
                return True
    return False


def _compare(path: Path) -> None:
    """Compare a file with the list of the stage that has written it."""
    damaged: DamagedFileError | None = None
    for each in sorted(path.parent.glob(f"*{SUFFIX}")):
        try:
            written = read_checksums(each).get(path.name)
        except DamagedFileError as error:  # perhaps another stage's
            damaged = error
        else:
            if written is not None:
                return compare(path, written)
    raise damaged or DamagedFileError(f"{path} is in no list of checksums beside it")
