"""The tracker of a stage: every call is one line appended to its spool.

Appending costs microseconds and the line is safe from a crash of the process at once, so there is
no buffer to lose; everything slow is done by whoever sends the spool.
"""

import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from implicit_models.tracking.courier import Courier
from implicit_models.tracking.spool import Event, Spool
from implicit_models.tracking.system import SystemMonitor
from implicit_models.tracking.tracker import Level

_logger = logging.getLogger(__name__)

_KEPT_IN_MEMORY = "what is tracked is kept in memory until it can be written"
_KEPT_ON_DISK = "what is tracked is kept on disk until `python -m implicit_models.tracking.sync`"

_ASK_SECONDS = 5.0
_CONNECT_SECONDS = 1.0
_LOCK_ATTEMPTS = 40
_LOCK_ATTEMPT_SECONDS = 0.005


class SpoolTracker:
    """Records one run in a spool, and asks a courier to send it.

    A spool that exists is continued: values of a metric at steps that the spool already holds for
    it are left out, so that a stage which goes on from a checkpoint before its last record leaves
    every step once. (What it repeats is equal, since training resumes deterministically.)

    Parameters
    ----------
    spool
        Where to record.
    start
        The run's first event; ignored where the spool already has one.
    courier
        Who sends the spool while it is written; None leaves it for later.
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
        courier: Courier | None = None,
        monitor: SystemMonitor | None = None,
    ) -> None:
        self.spool = spool
        self._courier = courier
        self._monitor = monitor
        self._guard = threading.Lock()
        self._descriptor: int | None = None
        self._size = 0
        self._unwritten: list[bytes] = []
        self._recorded: dict[tuple[Level, str], int] = {}
        self._warned_of: set[str] = set()
        self._opened = self._begun = time.time()
        self._asked = time.monotonic()
        self._closed = False
        with self._guarded(_KEPT_IN_MEMORY):
            self._open()
        if self._size:
            self._append("resume", {})
        else:
            self._append("start", start)
        if courier is not None:
            with self._guarded(_KEPT_ON_DISK):
                courier.ensure()
            # The courier yields to training and may take long to find this out.
            problem = _unreachable((self.spool.start() or start).get("destination"))
            if problem is not None:
                self._warn_of_unsent(problem)
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
            self._append("metrics", {"step": step, "level": level, "values": values})
        if time.monotonic() > self._asked + _ASK_SECONDS:
            self._ask()

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Record a file, or a folder with everything in it, as it is at this moment.

        It is copied: a link would follow whoever writes the file anew in place.
        """
        copy = Path(uuid.uuid4().hex[:8]) / path.name
        with self._guarded(f"{path} is not recorded"):
            target = self.spool.artifact_folder / copy
            target.parent.mkdir(parents=True)
            if path.is_dir():
                shutil.copytree(path, target)
            else:
                shutil.copyfile(path, target)
            self._append("artifact", {"copy": str(copy), "folder": folder})

    def log_dataset(self, name: str, digest: str, source: str, context: str) -> None:
        """Record that the run reads a data set; see `Tracker`."""
        content = {"name": name, "digest": digest, "source": source, "context": context}
        self._append("dataset", content)

    def register_model(self, name: str, digest: str, folder: str) -> None:
        """Have a logged model registered; see `Tracker`."""
        self._append("model", {"name": name, "digest": digest, "folder": folder})

    def score_model(
        self,
        name: str,
        digest: str,
        metric: str,
        value: float,
        *,
        higher_is_better: bool,
        dataset_digest: str | None = None,
    ) -> None:
        """Record what a registered model has reached; see `Tracker`."""
        content = {"name": name, "digest": digest, "metric": metric, "value": float(value)}
        content |= {"higher_is_better": higher_is_better, "dataset_digest": dataset_digest}
        self._append("score", content)

    def close(self) -> None:
        """Declare the run finished; whatever is not sent yet, the courier sends afterwards."""
        self._close("FINISHED")

    def __enter__(self) -> "SpoolTracker":
        """Return the tracker."""
        return self

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
        self._append("end", {"status": status})
        if self._unwritten:
            self._warn("loss", f"{len(self._unwritten)} events could not be written and are lost")
        if self._descriptor is None:
            return
        os.close(self._descriptor)
        self._descriptor = None
        if self._courier is None:
            return
        with self._guarded(_KEPT_ON_DISK):
            self._courier.ensure()
            self._ask()

    def _log_sample(self, sample: Mapping[str, float]) -> None:
        """Record a sample at the seconds since the run began, which a resumed run goes on from."""
        if self._closed:  # one that the system took long over
            return
        step = max(0, int(time.time() - self._begun))
        self._append("metrics", {"step": step, "level": "stage", "values": dict(sample)})

    def _open(self) -> int:
        """Take the spool for writing; what a crash left half written at its end is cut off."""
        self.spool.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        descriptor = os.open(self.spool.path, flags, 0o644)
        try:
            _lock(descriptor)
            for event, end in self.spool.events():
                if event["event"] == "start":
                    self._begun = event["time"] / 1000
                self._size = end
                for name in event["values"] if event["event"] == "metrics" else ():
                    key = event["level"], name
                    self._recorded[key] = max(event["step"], self._recorded.get(key, 0))
            os.ftruncate(descriptor, self._size)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def _append(self, kind: str, content: Event) -> None:
        event = {"event": kind, "time": int(time.time() * 1000)} | content
        with self._guard:
            self._unwritten.append(json.dumps(event, separators=(",", ":")).encode() + b"\n")
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
        """Turn what the disk or the system refuses into the tracker's one warning about it."""
        try:
            yield
        except BlockingIOError:
            raise
        except (OSError, subprocess.SubprocessError) as error:
            self._warn("disk", f"{error}; {consequence}")

    def _ask(self) -> None:
        """Warn if the courier could not send this run since it was opened."""
        self._asked = time.monotonic()
        problem = self._courier.problem(self.spool, self._opened) if self._courier else None
        if problem is not None:
            self._warn_of_unsent(problem)

    def _warn_of_unsent(self, problem: str) -> None:
        """Warn of it once for all runs that this process tracks: a stage may have many."""
        if "courier" not in self._warned_of:
            self._warned_of.add("courier")
            _warn_once(
                f"tracking: not everything could be sent to MLflow yet: {problem}. Nothing is "
                f"lost: it is kept in {self.spool.path.parent} and sent when the store can be "
                "reached, by this or the next stage or by "
                "`python -m implicit_models.tracking.sync`",
            )

    def _warn(self, subject: str, message: str) -> None:
        if subject not in self._warned_of:
            self._warned_of.add(subject)
            _logger.warning("tracking: %s", message)


@functools.cache
def _warn_once(message: str) -> None:
    _logger.warning(message)


def _unreachable(destination: str | None) -> str | None:
    """Say why nobody listens at a tracking server's address; None for every other store."""
    address = urllib.parse.urlsplit(destination or "")
    if address.scheme not in ("http", "https") or not address.hostname:
        return None
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname, port), _CONNECT_SECONDS).close()
    except OSError as error:
        return f"{destination}: {error}"
    return None


def flatten(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested mappings to dotted names with JSON text as values.

    >>> flatten({"model": {"family": "mamba2", "lengths": (16, 32)}})
    {'model.family': 'mamba2', 'model.lengths': '[16, 32]'}
    """
    flat: dict[str, str] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, str) else _text(value)
    return flat


def _text(value: Any) -> str:
    return json.dumps(value, default=str)


def _lock(descriptor: int) -> None:
    """Lock the spool for its writer; others may hold the lock for an instant to look at it."""
    for attempt in range(_LOCK_ATTEMPTS):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt == _LOCK_ATTEMPTS - 1:
                raise
            time.sleep(_LOCK_ATTEMPT_SECONDS)
    return None
