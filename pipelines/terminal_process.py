"""A command that shares this process's terminal, and ends with it."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

from pipelines.processes import PATIENCE, POLL_SECONDS, Switch, descendants_of, end
from pipelines.signals import Insistence, handled_signals

_HANDED_ON = (signal.SIGTERM, signal.SIGHUP)
_INTERRUPT_SECONDS = 5.0  # in which Ctrl-C, which reaches the command too, has ended it
_FAMILY_SECONDS = 2.0  # looking at all processes takes milliseconds


def run_in_terminal(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    keep_open: Sequence[int] = (),
    is_dvc: bool = False,
) -> int:
    """Run a command to its end with this process's terminal; return its exit status.

    Ctrl-C reaches the command, which keeps what it has; this process waits for that, for DVC's
    stages as long as after a SIGTERM, which they get a few seconds later, for the case that only
    this process was interrupted. SIGTERM and SIGHUP
    are handed on, as SIGTERM, and end this process once the command has ended; of the end of its
    terminal the command itself hears nothing.

    Parameters
    ----------
    environment
        The whole environment of the command.
    keep_open
        File descriptors that the command inherits.
    is_dvc
        Whether what the command runs is told to end, and not the command itself; a second SIGTERM
        kills all of it.

    Raises
    ------
    KeyboardInterrupt
        Where the command has ended, not by its own success, after a SIGINT.
    """
    switch, insistence = Switch(), Insistence()
    received: list[int] = []
    interrupted: list[float] = []
    known: dict[int, psutil.Process] = {}
    can_hand_on = threading.current_thread() is threading.main_thread()

    def wait_on(number: int, frame: FrameType | None) -> None:
        interrupted.append(time.monotonic())

    def hand_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        repeats = insistence.repeats(number)
        if is_dvc:
            switch.turn(0 if repeats else PATIENCE)

    with handled_signals(wait_on, [signal.SIGINT]), handled_signals(hand_on, _HANDED_ON):
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(environment),
            pass_fds=keep_open,
            preexec_fn=_ignore_hangup if can_hand_on else None,
        )
        num_told = 0
        looked = -_FAMILY_SECONDS
        while process.poll() is None and switch.deadline is None:
            if not is_dvc and num_told < len(received):
                num_told = len(received)
                process.terminate()
            if is_dvc and time.monotonic() - looked >= _FAMILY_SECONDS:
                looked = time.monotonic()
                known |= {each.pid: each for each in descendants_of(process.pid)}
            if is_dvc and interrupted and time.monotonic() - interrupted[0] >= _INTERRUPT_SECONDS:
                switch.turn(PATIENCE)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_SECONDS)
        if switch.deadline is not None:
            end(process, switch, known)
    if received:
        os.kill(os.getpid(), received[0])
    if interrupted and process.returncode != 0:
        raise KeyboardInterrupt
    return _status(process.returncode)


def _ignore_hangup() -> None:
    """Leave the end of the terminal to the process that hands it on; what is started has this."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _status(code: int) -> int:
    return code if code >= 0 else 128 - code
