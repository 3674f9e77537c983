"""The record of runs on local disk, from which they are sent and which outlives any crash.

A spool is one file of JSON lines, each with its checksum, appended to by the one stage that
writes it:

    .tracking/
        20260131T120000.000000-a5_implicit_mamba2-train_free-1b2c3d4e.jsonl       events
        20260131T120000.000000-a5_implicit_mamba2-train_free-1b2c3d4e.sent.json   `SentState`
        20260131T120000.000000-a5_implicit_mamba2-train_free-1b2c3d4e.artifacts/  copies of files
        sent/         spools that are finished and sent completely
        damaged/      spools of which nothing says what run they are of
        sending.lock  held by who sends
        courier.lock  held by the courier for as long as it lives

An event is ``{"event": KIND, "time": MILLISECONDS, ..., "checksum": ...}``; the first is of kind
``start``, those after it ``metrics``, ``artifact``, ``dataset``, ``logged_model``, ``score``,
``resume`` and ``end``. Who writes a spool holds a lock on it for as long as the process lives, so
that everyone else can tell an interrupted run from a running one.
"""

import contextlib
import dataclasses
import fcntl
import logging
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any

from implicit_models.files import sealed, unsealed

FOLDER = ".tracking"

Event = dict[str, Any]

_logger = logging.getLogger(__name__)

# What is read of events, with the types that it has.
_START: dict[str, Any] = {
    "time": int,
    **dict.fromkeys(("entry", "stage", "digest", "dvc_stage", "experiment"), str),
    **dict.fromkeys(("parent", "destination", "resume_key"), (str, NoneType)),
    **dict.fromkeys(("tags", "parameters", "stage_parameters"), dict),
}
_FORMS: dict[str, dict[str, Any]] = {
    "metrics": {"step": int, "level": str, "values": dict},
    "artifact": {"copy": str, "folder": (str, NoneType)},
    "logged_model": {
        **dict.fromkeys(("digest", "phase", "path"), str),
        **dict.fromkeys(("registered", "copy"), (str, NoneType)),
        "step": int,
    },
    "end": {"status": str},
}
_POLL_SECONDS = 0.01
_named: set[tuple[Path, int]] = set()  # the damaged lines, by the offsets of their ends


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
    moved_to
        The store that it was sent to by hand, in place of the one that its first event names.
    """

    offset: int = 0
    destination: str | None = None
    experiment_id: str | None = None
    run_id: str | None = None
    parent_run_id: str | None = None
    is_first_of_entry: bool = False
    status: str | None = None
    problem: str | None = None
    moved_to: str | None = None


@dataclasses.dataclass(frozen=True)
class Spool:
    """One spool on disk."""

    path: Path

    @classmethod
    def new(cls, root: Path, entry: str, stage: str) -> "Spool":
        """Choose the path of a spool that does not exist yet; sorted by name they are by age."""
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        label = f"{_label(entry)}-{_label(stage)}"
        return cls(root / FOLDER / f"{now}-{label}-{uuid.uuid4().hex[:8]}.jsonl")

    @property
    def artifact_folder(self) -> Path:
        """Folder of the copies of logged files."""
        return self.path.with_suffix(".artifacts")

    def copy_of(self, name: str) -> Path:
        """Return the copy of a logged file, which is removed when it is sent.

        Raises
        ------
        ValueError
            Where it is anything else than a file, or a folder of files, in `artifact_folder`.
        """
        copy = self.artifact_folder / name
        own = self.artifact_folder.absolute()
        if copy.absolute().parent.parent != own or ".." in copy.parts:
            raise ValueError(f"{name!r} is no copy in {self.artifact_folder}")
        for each in (own, copy.parent, copy, *(copy.rglob("*") if copy.is_dir() else ())):
            if each.is_symlink():
                raise ValueError(f"{each} is a link, no copy")
        return copy

    @property
    def _sent_path(self) -> Path:
        return self.path.with_suffix(".sent.json")

    def start(self) -> Event | None:
        """Return the first event, or None if it was never written completely."""
        try:
            first = next(self.events(), None)
        except OSError:
            return None
        if first is None or first[0].get("event") != "start":
            return None
        try:
            _check_form(first[0], _START)
        except ValueError as error:
            self._name_damaged(first[1], error)
            return None
        return first[0]

    def events(self, offset: int = 0) -> Iterator[tuple[Event, int]]:
        """Yield every complete event from a byte offset on, with the offset of its end.

        A last line without its end is being written, or was torn by a crash: it is left alone. A
        damaged line stays where it is, is named in the log once, and costs only itself.
        """
        for line, end in self._lines(offset):
            try:
                event = unsealed(line)
                _check_form(event, _FORMS.get(str(event.get("event")), {}))
            except ValueError as error:
                self._name_damaged(end, error)
                continue
            yield event, end

    def complete_size(self) -> int:
        """Return the number of bytes up to the end of the last complete line."""
        return max((end for _, end in self._lines(0)), default=0)

    def _lines(self, offset: int) -> Iterator[tuple[bytes, int]]:
        with self.path.open("rb") as lines:
            lines.seek(offset)
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                yield line, offset

    def _name_damaged(self, end: int, error: ValueError) -> None:
        if (self.path, end) not in _named:
            _named.add((self.path, end))
            number = sum(each <= end for _, each in self._lines(0))
            _logger.warning("%s, line %d is left out: %s", self.path, number, error)

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
            return SentState(**unsealed(self._sent_path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return SentState()

    def write_sent(self, sent: SentState) -> None:
        """Write atomically how far the spool was sent."""
        partial = self._sent_path.with_suffix(".partial")
        partial.write_text(sealed(dataclasses.asdict(sent)))
        partial.replace(self._sent_path)

    def set_aside_if_lost(self) -> None:
        """Set a spool aside whose first event is damaged: nothing says what run it is of."""
        if not self.size() or self.is_being_written() or self.start() or not self.complete_size():
            return
        folder = self.path.parent / "damaged"
        folder.mkdir(exist_ok=True)
        for path in (self.artifact_folder, self._sent_path, self.path):
            if path.exists():
                path.replace(folder / path.name)
        _logger.warning("%s does not say what run it is of; it is now in %s", self.path, folder)

    def retire(self) -> None:
        """Set the spool of a finished run, all of it sent, aside."""
        folder = self.path.parent / "sent"
        folder.mkdir(exist_ok=True)
        shutil.rmtree(self.artifact_folder, ignore_errors=True)
        Spool(folder / self.path.name).write_sent(self.read_sent())
        self.path.replace(folder / self.path.name)
        self._sent_path.unlink(missing_ok=True)


def _label(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def _check_form(event: Event, form: Mapping[str, Any]) -> None:
    """Check that an event has what its kind has, whoever has written it.

    Raises
    ------
    ValueError
        Naming the first that is missing or of another type.
    """
    for name, kinds in form.items():
        if not isinstance(event.get(name), kinds):
            raise ValueError(f"{name} is {event.get(name)!r}")


def line_of(event: Event) -> bytes:
    """Return an event as a line of a spool."""
    return sealed(event).encode() + b"\n"


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
    """Yield the spools whose first event has these values, and that event.

    Of an entry only those are opened whose names have its own: a report asks for every entry.
    """
    entry = values.get("entry")
    part = "" if entry is None else f"-{_label(entry)}-"
    for spool in reversed(all_spools(root)):
        start = spool.start() if part in spool.path.name else None
        if start and values.items() <= start.items():
            yield spool, start


@contextlib.contextmanager
def locked(path: Path, seconds: float = math.inf) -> Iterator[bool]:
    """Hold the lock on a file, made where missing; yields whether it could be had in time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield take_lock(descriptor, seconds)
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, seconds: float) -> bool:
    """Take the lock of an open file for this process alone; returns whether it was had in time."""
    if math.isinf(seconds):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        else:
            return True
