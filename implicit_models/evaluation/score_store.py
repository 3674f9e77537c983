"""Finished batches of an evaluation, kept on disk: none is computed again after an interruption."""

import contextlib
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from implicit_models.bars import bar

log = logging.getLogger(__name__)

Batch = TypeVar("Batch")

Measured = Mapping[str, np.ndarray]
"""What was measured of a batch: arrays whose first dimensions may be of any length."""

_FORMAT = 3  # of the file; one of another format is begun anew
_MAGIC = b"SQLite format 3\0"
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_BESIDE = ("", "-wal", "-shm")  # what SQLite keeps beside a file

# A batch is in the operating system's hands as soon as it is added, so that no killed process loses
# it. It is forced to the disk, which takes longer than many a batch, once in so many seconds.
_SETTINGS = ("journal_mode = WAL", "synchronous = NORMAL", "wal_autocheckpoint = 0")
_SECONDS_BETWEEN_SYNCS = 30.0


class ScoreStoreError(ValueError):
    """A file cannot be used to keep an evaluation."""


class ScoreStore:
    """An SQLite file of one evaluation; a batch is there whole or not at all.

    It is open inside of ``with``.

    Parameters
    ----------
    path
        Created where it does not exist, with its folder.
    identity
        Of everything that decides what is measured: a digest of the model, the data, the parameters
        and the code. A file of another identity, or a damaged one, is begun anew.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.identity = Path(path), identity
        self._was_checked = False
        self._synced = 0.0

    def __enter__(self) -> Self:
        """Open the file.

        Raises
        ------
        ScoreStoreError
            Where the file is none of SQLite's, or cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = self._open()
        except sqlite3.Error as error:
            if not self._is_damaged(error):
                raise ScoreStoreError(
                    f"{self.path} cannot be used ({error}); delete it to begin anew"
                ) from None
            log.warning("%s cannot be used (%s); begun anew", self.path, error)
            self._delete()
            self._database = self._open()
        self._synced = time.monotonic()
        return self

    def __exit__(self, *exception: object) -> None:
        self._database.close()

    def batches(self, part: str) -> list[dict[str, np.ndarray]]:
        """Return what was kept of one part of the evaluation, in the order of its batches."""
        found: dict[int, dict[str, np.ndarray]] = {}
        query = "SELECT batch, name, type, shape, content FROM arrays WHERE part = ? ORDER BY batch"
        for batch, name, kind, shape, content in self._database.execute(query, (part,)):
            array = np.frombuffer(content, dtype=kind).reshape(json.loads(shape))
            found.setdefault(batch, {})[name] = array
        return list(found.values())

    def add(self, part: str, batch: int, arrays: Measured) -> None:
        """Keep what was measured of a part's batch, which has this number."""
        rows = [(part, batch, name, *_packed(array)) for name, array in arrays.items()]
        with self._database as database:
            database.executemany("INSERT OR REPLACE INTO arrays VALUES (?, ?, ?, ?, ?, ?)", rows)
        if time.monotonic() - self._synced >= _SECONDS_BETWEEN_SYNCS:
            self._database.execute("PRAGMA wal_checkpoint")
            self._synced = time.monotonic()

    def discard(self) -> None:
        """Forget this evaluation: its results stand elsewhere."""
        self._delete()
        with contextlib.suppress(OSError):  # another evaluation's are there still
            self.path.parent.rmdir()

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path)
        try:
            for setting in _SETTINGS:
                database.execute(f"PRAGMA {setting}")
            if not self._was_checked:
                found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
                if found != "ok":
                    raise sqlite3.DatabaseError(found)
                self._was_checked = True
            with database:
                database.execute("BEGIN IMMEDIATE")
                self._identify(database)
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _identify(self, database: sqlite3.Connection) -> None:
        """Empty a file that is of another evaluation, and name it."""
        name = f"{_FORMAT} {self.identity}"
        tables = [found for (found,) in database.execute(_TABLES)]
        if "identity" in tables:
            if database.execute("SELECT name FROM identity").fetchone() == (name,):
                return
            log.info("%s holds another evaluation; begun anew", self.path)
        elif tables:
            raise sqlite3.OperationalError(f"it holds {', '.join(tables)}, and no evaluation")
        for table in tables:
            database.execute(f'DROP TABLE "{table}"')
        database.execute("CREATE TABLE identity (name TEXT)")
        database.execute("INSERT INTO identity VALUES (?)", (name,))
        database.execute(
            "CREATE TABLE arrays (part TEXT, batch INTEGER, name TEXT, type TEXT, shape TEXT, "
            "content BLOB, PRIMARY KEY (part, batch, name))"
        )

    def _is_damaged(self, error: sqlite3.Error) -> bool:
        """Return whether it is a file of SQLite's that is not whole."""
        if isinstance(error, sqlite3.OperationalError):  # it is locked, or not to be written
            return False
        with self.path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC

    def _delete(self) -> None:
        for suffix in _BESIDE:
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def _packed(array: np.ndarray) -> tuple[str, str, bytes]:
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} cannot be kept; numbers and texts can")
    return array.dtype.str, json.dumps(array.shape), array.tobytes()


def measure_batches(
    batches: Sequence[Batch],
    measure: Callable[[Batch], Measured],
    *,
    store: ScoreStore | None,
    part: str,
    description: str,
) -> dict[str, np.ndarray]:
    """Measure every batch once, and put what was found in a row, in the order of the batches.

    Parameters
    ----------
    measure
        Returns arrays of the same names for every batch.
    store
        Where to keep what was found, and go on from; None keeps nothing.
    part
        Name of these batches among those of the evaluation.
    description
        What the bar says.
    """
    with store or contextlib.nullcontext():
        found: list[Measured] = [] if store is None else [*store.batches(part)]
        done, total = len(found), len(batches)
        if done:
            log.info("%s: continuing after %d of %d batches", description, done, total)
        with bar(total, description, "batch", start=done) as counted:
            for number in range(done, total):
                found.append(measure(batches[number]))
                if store is not None:
                    store.add(part, number, found[number])
                counted.update()
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}
