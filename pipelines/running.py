"""How one stage is run: what a runner is, what comes of it, and the runner of this machine.

A runner takes a stage and a log, and returns when DVC has the stage's outputs. It says by its error
whose fault it was: a stage's own error would come again, a fault of the infrastructure may not.
"""

import contextlib
import fcntl
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from pipelines import disk
from pipelines.dag import Stage
from pipelines.dvc_files import set_damaged_aside
from pipelines.outcomes import How, Outcome
from pipelines.processes import (
    PATIENCE,
    Log,
    StoppedError,
    allow_all,
    is_overdue,
    pause,
    run_process,
    stop_all,
    stopping,
)

__all__ = [
    "InfrastructureError",
    "LocalRunner",
    "Log",
    "Outcome",
    "Runner",
    "StageFailedError",
    "StoppedError",
    "allow_all",
    "file_lock",
    "is_overdue",
    "pause",
    "run_process",
    "stage_lock",
    "stop_all",
    "stopping",
]

_TAIL_LINES = 15
_BUSY_SECONDS = 5.0
# After which torchrun kills its processes: within what a stage has for a checkpoint.
_SHUTDOWN = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_ENDING = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
_KILLED = {status for number in _ENDING for status in (-number, 128 + number)}
# In torchrun's summary, where the process that was the first to fail stands last.
_PROCESS_STATUS = re.compile(r"\s*exitcode\s*: (-?\d+) \(pid: \d+\)")
_HINTS = (  # that DVC gives after every stage
    "Updating lock file",
    "Generating lock file",
    "To track the changes with git",
    "git add ",
    "To enable auto staging",
    "dvc config core.autostage",
    "Use `dvc push` to send",
    "Data and pipelines are up to date",
)


class StageFailedError(Exception):
    """The stage's own error: it would come again, so the stage is not tried again."""


class InfrastructureError(Exception):
    """A fault around the stage, such as a killed process: the stage is tried again."""


class Runner(Protocol):
    """Brings one stage up to date."""

    def __call__(self, stage: Stage, log: Log) -> Outcome:
        """Run it unless it is up to date.

        Raises
        ------
        StageFailedError, InfrastructureError
            By whose fault it was; the message has the stage's last lines and what to do.
        StoppedError
            If `stop_all` was called.
        """
        ...


@dataclass(frozen=True)
class LocalRunner:
    """Runs stages on this machine, with ``dvc repro --single-item``.

    Attributes
    ----------
    root
        The repository.
    environment
        What the stage's environment has on top of that of this process.
    keep_open
        File descriptors that the stage inherits: locks that it shall hold if this process dies.
    """

    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    keep_open: tuple[int, ...] = ()

    def __call__(self, stage: Stage, log: Log) -> Outcome:
        """Run it; waits for others who run the same stage, and for DVC's locks."""
        start = time.monotonic()
        command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item"]
        told = False
        with stage_lock(self.root, stage.name, log) as lock:
            while True:
                for line in set_damaged_aside(self.root):
                    log(line)
                record = _Record(stage.name, log)
                code = run_process(
                    [*command, stage.name],
                    cwd=self.root,
                    environment=self._environment(),
                    log=record,
                    keep_open=(lock, *self.keep_open),
                )
                if code == 0:
                    return Outcome(record.how, time.monotonic() - start, "here")
                if not record.is_busy:
                    raise record.error(code)
                if not told:
                    log("another DVC command works on its files: waiting for that")
                    told = True
                pause(_BUSY_SECONDS)

    def _environment(self) -> dict[str, str]:
        # A stage's command is `python -m ...`: it has to be the Python that runs this.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        patience = {_SHUTDOWN: str(round(PATIENCE) - 10)}
        own = {"PYTHONUNBUFFERED": "1", **self.environment, "PATH": path}
        return {**patience, **os.environ, **own}


def stage_lock(root: Path, name: str, log: Log) -> contextlib.AbstractContextManager[int]:
    """Hold a stage's lock in the repository, as `file_lock` does."""
    path = root / ".dvc" / "tmp" / "stages" / f"{quote(name, safe='@')}.lock"
    return file_lock(path, log, "another flow in this repository runs this: waiting for that")


@contextlib.contextmanager
def file_lock(path: Path, log: Log, taken: str) -> Iterator[int]:
    """Hold the lock of a file, made where missing, which one process has at a time.

    Parameters
    ----------
    taken
        What the log is told, once, while another process has it.

    Yields
    ------
    int
        Its file descriptor. A child that inherits it holds the lock on until it ends.

    Raises
    ------
    StageFailedError
        Where the file system has no flock.
    StoppedError
        If `stop_all` was called.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    log(taken)
                    told = True
                pause(0.5)
            except OSError as error:
                if not disk.has_no_flock(error):
                    raise
                raise StageFailedError(f"{path.parent}: {disk.NO_FLOCK}") from None
        yield file.fileno()


class _Record:
    """What DVC has said of a stage, handed on to a log."""

    def __init__(self, name: str, log: Log) -> None:
        self._name = name
        self._log = log
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process_status: int | None = None
        self.how: How = "cached"
        self.is_busy = False

    def __call__(self, line: str) -> None:
        if line.strip().startswith(_HINTS):
            return
        self._tail.append(line)
        if found := _PROCESS_STATUS.match(line):
            self._process_status = int(found[1])
        if line == f"Running stage '{self._name}':":
            self.how = "ran"
        elif line.startswith(f"Stage '{self._name}' is cached - skipping run"):
            self.how = "restored"
        elif "is busy, it is being blocked by" in line:
            self.is_busy = self.how == "cached"
        # DVC's advice to remove its lock by hand would be wrong: it is waited for.
        if not self.is_busy:
            self._log(line)

    def error(self, code: int) -> Exception:
        """Return the error, by whose fault DVC has ended with an exit status."""
        text = "\n".join(self._tail)
        exited = re.findall(r"failed to run: .*?, exited with (-?\d+)", text, re.DOTALL)
        status = int(exited[-1]) if exited else code
        if status == 1 and self._process_status is not None:  # torchrun's own says nothing
            status = self._process_status
        lines = "\n".join(f"    {line}" for line in self._tail)
        said = f"\nits last lines:\n{lines}\n"
        again = "the same command goes on from what is done"
        if status in _KILLED:
            number = status - 128 if status > 0 else -status
            name = signal.Signals(number).name
            if number == signal.SIGKILL:
                said += "where it needs more memory than there is, run fewer stages at once "
                said += "(--jobs); "
            return InfrastructureError(
                f"stage {self._name} was ended by {name} from outside{said}{again}"
            )
        if "Unable to acquire lock" in text:
            return InfrastructureError(f"stage {self._name}: DVC's lock is taken{said}{again}")
        if any(sign in text for sign in disk.SIGNS):
            return StageFailedError(
                f"stage {self._name} failed{said}{disk.MAKE_ROOM}; then {again}"
            )
        return StageFailedError(
            f"stage {self._name} failed with exit status {status}{said}"
            f"correct that, and {again}; alone it runs by `dvc repro --single-item {self._name}`"
        )
