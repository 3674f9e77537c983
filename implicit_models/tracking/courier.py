"""The process beside the stages that sends their spools.

Importing MLflow costs seconds of processor time, which a thread would take from the training loop
through the interpreter lock. One process of lowest priority for all stages of a repository pays it
once, goes on to the next stage's spool, and leaves a few seconds after the last stage has.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from implicit_models.tracking.spool import FOLDER, Spool, locked, open_spools

_PROJECT = Path(__file__).parents[2]
_START_SECONDS = 30.0

LIVE_SEND_SECONDS = 0.4

Send = Callable[[Sequence[Spool], float], Mapping[Spool, str]]


class Pace(NamedTuple):
    """Seconds between what the courier does; what it takes beside a stage is 1 % of one core.

    Attributes
    ----------
    poll
        Between two looks at whether a stage has ended.
    first, interval
        Before it sends from stages that run, and from then on at least.
    rest
        For each second of processor time that it has taken; the first time, when it imports MLflow
        and may have to create a database, it takes 4.
    retry
        Before it tries again where something could not be sent.
    linger
        After the last stage until it leaves.
    """

    poll: float = 1.0
    first: float = 60.0
    interval: float = 5.0
    rest: float = 100.0
    retry: float = 60.0
    linger: float = 10.0


def lock_path(root: Path) -> Path:
    """Return the file locked by the repository's courier."""
    return root / FOLDER / "courier.lock"


def is_running(root: Path) -> bool:
    """Return whether the repository's courier is at work."""
    with locked(lock_path(root), seconds=0) as is_free:
        return not is_free


def ensure_courier(root: Path) -> None:
    """Start the repository's courier unless it is at work.

    Raises
    ------
    OSError, subprocess.SubprocessError
        If no process can be started.
    """
    if is_running(root):
        return
    search_path = [str(_PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "implicit_models.tracking.sync", "--courier"]
    with (root / FOLDER / "courier.log").open("a") as log:
        # The command detaches itself and returns at once: nothing is left to be waited for.
        subprocess.run(
            [*command, "--root", str(root.absolute())],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(search_path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=_START_SECONDS,
            check=False,
        )


def detach() -> None:
    """Go on as a process of its own, with the time nobody else wants, and let the caller return.

    It stays in the session of the stage: Linux shares the processor among sessions first, so in one
    of its own the lowest priority would still be worth half a core. A process group of its own
    keeps Ctrl-C from it, so that what an interrupted stage logged is sent.
    """
    if os.fork():
        os._exit(0)
    os.setpgid(0, 0)
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def serve(root: Path, send: Send, pace: Pace | None = None) -> None:
    """Send spools as they grow until nobody has written one for a while.

    A spool whose writer has gone is sent at once; those that are being written a little at a time.
    Returns at once if someone else is serving.

    Parameters
    ----------
    root
        The repository.
    send
        Sends spools, those that are being written for so many seconds of processor time; returns
        what could not be sent, and why.
    """
    while True:
        with locked(lock_path(root), seconds=0) as is_free:
            if not is_free:
                return
            _serve(root, send, pace or Pace())
        # A stage that began while the lock was still held has relied on us.
        if not any(spool.is_being_written() for spool in open_spools(root)):
            return


def _serve(root: Path, send: Send, pace: Pace) -> None:
    needed = time.monotonic()
    due = needed + pace.first
    tried: set[Spool] = set()  # since their writers have gone
    while lock_path(root).exists():  # until someone removes it, or the folder
        now = time.monotonic()
        spools = open_spools(root)
        ended = {spool for spool in spools if not spool.is_being_written()}
        tried &= ended
        if tried != set(spools):
            needed = now
        elif now > needed + pace.linger:
            return
        is_due = now >= due
        ready = spools if is_due else [each for each in spools if each in ended - tried]
        if ready:
            before = time.process_time()
            problems = send(ready, LIVE_SEND_SECONDS)
            rest = pace.rest * (time.process_time() - before)
            tried |= ended
            if is_due:
                pause = pace.retry if problems else pace.interval
                due = time.monotonic() + max(pause, rest)
        time.sleep(pace.poll)
