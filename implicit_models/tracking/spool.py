"""The record of runs on local disk, from which they are sent and which outlives any crash.

A spool is one file of JSON lines, appended to by the one stage that writes it:

    .tracking/
        20260131T120000.000000-a5_implicit_mamba2-train_free-1b2c3d4e.jsonl       events
        20260131T120000.000000-a5_implicit_mamba2-train_free-1b2c3d4e.sent.json   `SentState`
        20260131T120000.000000-a5_implicit_mamba2-train_free-1b2c3d4e.artifacts/  copies of files
        sent/         spools that are finished and sent completely
        sending.lock  held by who sends
        courier.lock  held by the courier for as long as it lives

An event is ``{"event": KIND, "time": MILLISECONDS, ...}``; the first is of kind ``start``, those
after it ``metrics``, ``artifact``, ``dataset``, ``model``, ``score``, ``resume`` and ``end``. Who
writes a spool holds a lock on it for as long as the process lives, so that everyone else can
tell an interrupted run from a running one.
"""

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = ".tracking"

Event = dict[str, Any]

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentState:
    """How far a spool has been sent.

    Attributes
    ----------
    offset
        Bytes of the spool whose events have been accepted.
    destination, experiment_id, run_id, parent_run_id
        Where they went: address of the tracking store, the stage's run and its parent there.
    is_first_of_entry
        Whether the parent was made for this stage, because there was none to join.
    status
        The status given to the run.
    problem
        Why the last attempt to send the spool failed; None where it did not.
    """

    offset: int = 0
    destination: str | None = None
    experiment_id: str | None = None
    run_id: str | None = None
    parent_run_id: str | None = None
    is_first_of_entry: bool = False
    status: str | None = None
    problem: str | None = None


@dataclasses.dataclass(frozen=True)
class Spool:
    """One spool on disk."""

    path: Path

    @classmethod
    def new(cls, root: Path, entry: str, stage: str) -> "Spool":
        """Choose the path of a spool that does not exist yet; sorted by name they are by age."""
        time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        label = re.sub(r"[^\w.-]", "_", f"{entry}-{stage}")
        return cls(root / FOLDER / f"{time}-{label}-{uuid.uuid4().hex[:8]}.jsonl")

    @property
    def artifact_folder(self) -> Path:
        """Folder of the copies of logged files."""
        return self.path.with_suffix(".artifacts")

    @property
    def _sent_path(self) -> Path:
        return self.path.with_suffix(".sent.json")

    def start(self) -> Event | None:
        """Return the first event, or None if it was never written completely."""
        try:
            first = next(self.events(), None)
        except OSError:
            return None
        return first[0] if first and first[0].get("event") == "start" else None

    def events(self, offset: int = 0) -> Iterator[tuple[Event, int]]:
        """Yield every complete event from a byte offset on, with the offset of its end.

        A last line without its end is being written, or was torn by a crash: it is left alone.
        """
        with self.path.open("rb") as lines:
            lines.seek(offset)
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                try:
                    event = json.loads(line)
                except ValueError:
                    _logger.warning("%s: skipped a line that is not JSON", self.path)
                    continue
                yield event, offset

    def is_being_written(self) -> bool:
        """Return whether the process that writes the spool is alive."""
        try:
            with self.path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False

    def size(self) -> int:
        """Return the number of bytes written; 0 where the spool was set aside."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read_sent(self) -> SentState:
        """Read how far the spool was sent; from its beginning again where that is unreadable."""
        try:
            return SentState(**json.loads(self._sent_path.read_text()))
        except (OSError, ValueError, TypeError):
            return SentState()

    def write_sent(self, sent: SentState) -> None:
        """Write atomically how far the spool was sent."""
        partial = self._sent_path.with_suffix(".partial")
        partial.write_text(json.dumps(dataclasses.asdict(sent)))
        partial.replace(self._sent_path)

    def retire(self) -> None:
        """Set the spool of a finished run, all of it sent, aside."""
        folder = self.path.parent / "sent"
        folder.mkdir(exist_ok=True)
        shutil.rmtree(self.artifact_folder, ignore_errors=True)
        Spool(folder / self.path.name).write_sent(self.read_sent())
        self.path.replace(folder / self.path.name)
        self._sent_path.unlink(missing_ok=True)


def open_spools(root: Path) -> list[Spool]:
    """List the spools that are unfinished or not sent completely, the oldest first."""
    return [Spool(path) for path in sorted((root / FOLDER).glob("*.jsonl"))]


def all_spools(root: Path) -> list[Spool]:
    """List every spool there is, the oldest first."""
    spools = {spool.path.name: spool for spool in open_spools(root)}
    # Looked for second, so that a spool set aside in between is found once and where it now is.
    spools |= {path.name: Spool(path) for path in (root / FOLDER / "sent").glob("*.jsonl")}
    return [spools[name] for name in sorted(spools)]


def newest_first(root: Path, **values: str | None) -> Iterator[tuple[Spool, Event]]:
    """Yield the spools whose first event has these values, and that event."""
    for spool in reversed(all_spools(root)):
        start = spool.start()
        if start and values.items() <= start.items():
            yield spool, start


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock on a file, made where missing; yields whether it could be had."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
