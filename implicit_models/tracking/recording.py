"""The tracker of a stage: every call is one line appended to its spool.

Appending costs microseconds and the line is safe from a crash of the process at once, so there is
no buffer to lose; everything slow is done by whoever sends the spool.
"""

import contextlib
import errno
import logging
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

from implicit_models.tracking.spool import Event, Spool, line_of, take_lock
from implicit_models.tracking.system import SystemMonitor
from implicit_models.tracking.tracker import Level, Tracker

_logger = logging.getLogger(__name__)

_KEPT_IN_MEMORY = "what is tracked is kept in memory until it can be written"
_KEPT_ON_DISK = "what is tracked is kept on disk until `python -m implicit_models.tracking.sync`"

_ASK_SECONDS = 5.0
_CONNECT_SECONDS = 1.0
_LOOK_SECONDS = 0.2  # others may hold the lock for an instant, to look at the spool

_warned_of: set[tuple[Path, str]] = set()  # a process may track many runs in one folder


class SpoolTracker(Tracker):
    """Records one run in a spool, and starts the courier that sends it.

    A spool that exists is continued: values of a metric at steps that the spool already holds for
    it are left out, so that a stage which goes on from a checkpoint before its last record leaves
    every step once. (What it repeats is equal, since training resumes deterministically.)

    Parameters
    ----------
    spool
        Where to record.
    start
        The run's first event; ignored where the spool already has one.
    ensure_courier
        Starts the courier unless it runs; None leaves the spool to be sent later.
    monitor
        Who samples the machine's load until the tracker is closed; None for nobody.

    Raises
    ------
    BlockingIOError
        If another process is writing the spool.
    """

    def __init__(
        self,
        spool: Spool,
        start: Event,
        ensure_courier: Callable[[], None] | None = None,
        monitor: SystemMonitor | None = None,
    ) -> None:
        self.spool = spool
        self._ensure_courier = ensure_courier
        self._monitor = monitor
        self._guard = threading.Lock()
        self._descriptor: int | None = None
        self._size = 0
        self._unwritten: list[bytes] = []
        self._recorded: dict[tuple[Level, str], int] = {}
        self._begun = time.time()
        self._asked = time.monotonic()
        self._closed = False
        with self._guarded(_KEPT_IN_MEMORY):
            self._open()
        if self._size:
            self._record("resume", {})
        else:
            self._record("start", start)
        if ensure_courier is not None:
            with self._guarded(_KEPT_ON_DISK):
                ensure_courier()
            # The courier yields to training and may take long to find this out.
            destination = (self.spool.start() or start).get("destination")
            self._warn_of_unsent(_unreachable(destination))
        if monitor is not None:
            monitor.start(self._log_sample)

    def log_metrics(
        self, metrics: Mapping[str, float | int], step: int | None = None, level: Level = "both"
    ) -> None:
        """Record one value for each name; see `Tracker`."""
        step = 0 if step is None else int(step)
        values = {
            name: float(value)
            for name, value in metrics.items()
            if step > self._recorded.get((level, name), -1)
        }
        if values:
            self._record("metrics", {"step": step, "level": level, "values": values})
        if self._ensure_courier and time.monotonic() > self._asked + _ASK_SECONDS:
            self._asked = time.monotonic()
            self._warn_of_unsent(self.spool.read_sent().problem)

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Record a file, or a folder with everything in it, as it is at this moment.

        It is copied: a link would follow whoever writes the file anew in place.
        """
        with self._guarded(f"{path} is not recorded"):
            copy = self._copy(path)
            self._record("artifact", {"copy": copy, "folder": folder})

    def log_model(
        self,
        path: Path,
        digest: str,
        *,
        phase: str,
        step: int,
        registered: str | None = None,
    ) -> None:
        """Record a trained model; see `Tracker`. What becomes a version is copied."""
        content = {"digest": digest, "phase": phase, "step": step, "registered": registered}
        with self._guarded(f"{path} is not recorded"):
            copy = None if registered is None else self._copy(path)
            place = {"path": path.as_posix(), "copy": copy}
            self._record("logged_model", content | place)

    def close(self) -> None:
        """Declare the run finished; whatever is not sent yet, the courier sends afterwards."""
        self._close("FINISHED")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the run as finished, failed or killed, and let the error pass."""
        if kind is None:
            self._close("FINISHED")
        else:
            self._close("FAILED" if issubclass(kind, Exception) else "KILLED")

    def _close(self, status: str) -> None:
        if self._closed:
            return
        if self._monitor is not None:
            self._monitor.stop()
        self._closed = True
        self._record("end", {"status": status})
        if self._unwritten:
            num_lost = len(self._unwritten)
            _logger.warning("tracking: %d events could not be written and are lost", num_lost)
        if self._descriptor is None:
            return
        os.close(self._descriptor)
        self._descriptor = None
        if self._ensure_courier is not None:
            with self._guarded(_KEPT_ON_DISK):
                self._ensure_courier()
            self._warn_of_unsent(self.spool.read_sent().problem)

    def _copy(self, path: Path) -> str:
        """Copy a file or a folder beside the spool; return the copy's name there."""
        copy = Path(uuid.uuid4().hex[:8]) / path.name
        target = self.spool.artifact_folder / copy
        target.parent.mkdir(parents=True)
        if path.is_dir():
            shutil.copytree(path, target)
        else:
            shutil.copyfile(path, target)
        return str(copy)

    def _log_sample(self, sample: Mapping[str, float]) -> None:
        """Record a sample at the seconds since the run began, which a resumed run goes on from."""
        if self._closed:  # one that the system took long over
            return
        step = max(0, int(time.time() - self._begun))
        self._record("metrics", {"step": step, "level": "stage", "values": dict(sample)})

    def _open(self) -> int:
        """Open the spool for writing; what a crash left half written at its end is cut off.

        A new one gets its name when it is locked: nobody sees it as one whose writer has gone.
        """
        path = self.spool.path
        path.parent.mkdir(parents=True, exist_ok=True)
        unlocked = path if path.exists() else path.with_suffix(".new")
        descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if not take_lock(descriptor, _LOOK_SECONDS):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            unlocked.replace(path)
            for event, _ in self.spool.events():
                if event["event"] == "start":
                    self._begun = event["time"] / 1000
                for name in event["values"] if event["event"] == "metrics" else ():
                    key = event["level"], name
                    self._recorded[key] = max(event["step"], self._recorded.get(key, 0))
            self._size = self.spool.complete_size()
            os.ftruncate(descriptor, self._size)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def _record(self, kind: str, content: Event) -> None:
        event = {"event": kind, "time": int(time.time() * 1000)} | content
        with self._guard:
            self._unwritten.append(line_of(event))
            with self._guarded(_KEPT_IN_MEMORY):
                descriptor = self._open() if self._descriptor is None else self._descriptor
                self._write(descriptor, b"".join(self._unwritten))
                self._unwritten.clear()

    def _write(self, descriptor: int, data: bytes) -> None:
        try:
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(descriptor, self._size)
            raise
        self._size += len(data)

    @contextlib.contextmanager
    def _guarded(self, consequence: str) -> Iterator[None]:
        """Turn what the disk or the system refuses into one warning."""
        try:
            yield
        except BlockingIOError:
            raise
        except (OSError, subprocess.SubprocessError) as error:
            self._warn_once("disk", f"tracking: {error}; {consequence}")

    def _warn_of_unsent(self, problem: str | None) -> None:
        if problem is not None:
            self._warn_once(
                "store",
                f"tracking: not everything could be sent to MLflow yet: {problem}. Nothing is "
                f"lost: it is kept in {self.spool.path.parent} and sent when the store can be "
                "reached, by this or the next stage or by "
                "`python -m implicit_models.tracking.sync`",
            )

    def _warn_once(self, subject: str, message: str) -> None:
        key = self.spool.path.parent.absolute(), subject
        if key not in _warned_of:
            _warned_of.add(key)
            _logger.warning(message)


def _unreachable(destination: str | None) -> str | None:
    """Return why nobody listens at a tracking server's address; None for every other store."""
    address = urllib.parse.urlsplit(destination or "")
    if address.scheme not in ("http", "https") or not address.hostname:
        return None
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname, port), _CONNECT_SECONDS).close()
    except OSError as error:
        return f"{destination}: {error}"
    return None
