"""Child processes, which end when the flow or the command that runs them is stopped.

Those of a flow stream what they print, and each is the leader of a process group of its own, so
that Ctrl-C in the terminal reaches the flow alone. To stop DVC its descendants get SIGTERM and not
DVC: it then sees its command end, writes down what it knows and leaves; a training saves a
checkpoint first. What is still there when the patience is over is killed.
"""

import contextlib
import contextvars
import functools
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

Log = Callable[[str], None]

PATIENCE = 120.0  # seconds: a checkpoint of a large model takes its time
_PROGRESS_SECONDS = 10.0
POLL_SECONDS = 0.05
_IDLE_LEADER_SECONDS = 3.0


class StoppedError(Exception):
    """A stage that has ended, or has not begun, because the flow was stopped."""


class Switch:
    """When something has to be over, by the monotonic clock; plain, for signal handlers set it."""

    deadline: float | None = None

    def turn(self, patience: float) -> None:
        """Set how many seconds are left, if there are not fewer already."""
        deadline = time.monotonic() + patience
        self.deadline = min(deadline, self.deadline or deadline)


_EVERYTHING = Switch()


def stop_all(patience: float = PATIENCE) -> None:
    """Ask everything that this process runs for stages to end; return at once.

    Parameters
    ----------
    patience
        Seconds after which what has not ended is killed. A second call may shorten them.
    """
    _EVERYTHING.turn(patience)


def allow_all() -> None:
    """Allow stages to begin again after `stop_all`."""
    _EVERYTHING.deadline = None


def stopping() -> bool:
    """Return whether `stop_all` was called; whoever waits long has to ask."""
    return _EVERYTHING.deadline is not None


def is_overdue() -> bool:
    """Return whether the patience of `stop_all` is over; whoever waits for an orderly end asks."""
    deadline = _EVERYTHING.deadline
    return deadline is not None and time.monotonic() >= deadline


def pause(seconds: float) -> None:
    """Sleep, unless the flow is stopped.

    Raises
    ------
    StoppedError
        As soon as it is.
    """
    end = time.monotonic() + seconds
    while True:
        if stopping():
            raise StoppedError("stopped while it waited; the same command goes on from there")
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, 0.2))


@contextlib.contextmanager
def in_background(
    work: Callable[[threading.Event], None], patience: float | None = None
) -> Iterator[None]:
    """Run a function in a thread during a block.

    Parameters
    ----------
    work
        Gets an event that is set when the block ends.
    patience
        Seconds to wait for the thread then; until it has ended where None.
    """
    ended = threading.Event()
    # What works may need the caller's context: Prefect keeps its settings there.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(patience)


def run_process(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    log: Log,
    keep_open: Sequence[int] = (),
) -> int:
    """Run a command to its end, handing on what it prints line by line.

    Parameters
    ----------
    environment
        The whole environment of the command.
    keep_open
        File descriptors that the command inherits: a lock that it shall hold on to if this
        process dies.

    Returns
    -------
    int
        Its exit status; negative where a signal ended it.

    Raises
    ------
    StoppedError
        If `stop_all` was called, once the command and its descendants are gone.
    """
    if stopping():
        raise StoppedError("stopped before it began; the same command goes on from there")
    # A file and no pipe: a command that outlives this process would die of a broken pipe.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=keep_open,
        )
        with in_background(functools.partial(_hand_on, output, log)):
            while process.poll() is None and not stopping():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
            if stopping():
                end(process, _EVERYTHING, {})
    if stopping():
        raise StoppedError("stopped; started again it goes on from what it has kept")
    return process.returncode


def lines_of(chunks: Iterator[bytes]) -> Iterator[str]:
    r"""Split output into lines; of a progress bar that overwrites itself (``\r``) the last state.

    While a bar goes on, its state is shown every ten seconds.
    """
    pending = b""
    shown = time.monotonic()
    for chunk in chunks:
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            shown = time.monotonic()
            yield _last_state(line)
        if b"\r" in pending:
            state = _last_state(pending)
            pending = pending[pending.rstrip(b"\r").rfind(b"\r") + 1 :]
            if state and time.monotonic() - shown >= _PROGRESS_SECONDS:
                shown = time.monotonic()
                yield state
    if pending:
        yield _last_state(pending)


def _last_state(line: bytes) -> str:
    states = [state for state in line.split(b"\r") if state.strip()]
    return states[-1].decode(errors="replace").rstrip() if states else ""


def _hand_on(output: IO[bytes], log: Log, ended: threading.Event) -> None:
    """Hand on to a log, line by line, what is written to a file until an event is set."""
    for line in lines_of(_chunks(output.fileno(), ended)):
        if line:
            log(line)


def _chunks(descriptor: int, ended: threading.Event) -> Iterator[bytes]:
    position = 0
    while True:
        is_all = ended.is_set()
        # The offset is shared with those who write: it has to stay where they have it.
        chunk = os.pread(descriptor, 65536, position)
        position += len(chunk)
        if chunk:
            yield chunk
        elif is_all:
            return
        else:
            ended.wait(POLL_SECONDS)


def end(process: subprocess.Popen, switch: Switch, known: dict[int, psutil.Process]) -> None:
    """Stop a command and its descendants: gently, then, when the patience is over, by force.

    Parameters
    ----------
    known
        Descendants that were seen before; the command may have ended without them.
    """
    asked: set[int] = set()
    idle_since = time.monotonic()
    while process.poll() is None or _alive(known):
        for descendant in descendants_of(process.pid):
            known[descendant.pid] = descendant
        now = time.monotonic()
        if now >= (switch.deadline or now):
            _kill(process, known)
            break
        for pid in known.keys() - asked:
            asked.add(pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                known[pid].terminate()
        if _alive(known):
            idle_since = now
        elif now - idle_since > _IDLE_LEADER_SECONDS and process.pid not in asked:
            # It waits, or writes: SIGINT lets it clear up behind itself.
            asked.add(process.pid)
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    process.wait()


def descendants_of(leader: int) -> list[psutil.Process]:
    """Return what the leader has started and is still in its family; zombies have ended."""
    try:
        return psutil.Process(leader).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _alive(known: Mapping[int, psutil.Process]) -> bool:
    return any(_runs(descendant) for descendant in known.values())


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill(process: subprocess.Popen, known: Mapping[int, psutil.Process]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # which may lead no group
    for descendant in known.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            descendant.kill()
