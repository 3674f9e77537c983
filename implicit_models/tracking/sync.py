"""Send what is tracked and not sent yet: ``python -m implicit_models.tracking.sync``.

The same command, detached and of low priority, is the courier that runs beside the stages.
"""

import argparse
import contextlib
import functools
import logging
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from implicit_models.tracking.courier import Courier
from implicit_models.tracking.spool import Spool, locked, open_spools

_logger = logging.getLogger("implicit_models.tracking.sync")

_POLL_SECONDS = 1.0
_INTERVAL_SECONDS = 5.0
_MAX_INTERVAL_SECONDS = 60.0
_LINGER_SECONDS = 10.0

Send = Callable[[Sequence[Spool], float], Mapping[Spool, str]]


class LiveAfter(NamedTuple):
    """Seconds that a stage is written before it is sent from.

    Attributes
    ----------
    cold
        Where the courier has sent nothing yet: it has to import MLflow, and to create a database.
    warm
        Where it has.
    """

    cold: float
    warm: float


# What is sent beside a stage takes about 1 % of one core: importing MLflow and creating a database
# cost 3 to 4 s of processor time; a little is sent at a time, and rest is due after it.
LIVE_AFTER_SECONDS = LiveAfter(cold=400.0, warm=60.0)
LIVE_SEND_SECONDS = 0.4
REST_PER_SECOND = 100.0


def serve(
    root: Path,
    send: Send,
    *,
    poll: float = _POLL_SECONDS,
    interval: float = _INTERVAL_SECONDS,
    linger: float = _LINGER_SECONDS,
    live_after: LiveAfter = LIVE_AFTER_SECONDS,
) -> None:
    """Send spools as they grow until nobody has written one for a while.

    A spool whose writer has gone is sent at once; one that is being written only after the seconds
    of `live_after`, a little at a time, every `interval` seconds or less often: after what was
    costly, or while the store does not answer. Returns at once if someone else is serving.
    """
    courier = Courier(root)
    while True:
        with locked(courier.lock_path, wait=False) as is_free:
            if not is_free:
                return
            _serve(root, send, courier, poll, interval, linger, live_after)
        # A stage that began while the lock was still held has relied on us.
        if not any(spool.is_being_written() for spool in open_spools(root)):
            return


def _serve(
    root: Path,
    send: Send,
    courier: Courier,
    poll: float,
    interval: float,
    linger: float,
    live_after: LiveAfter,
) -> None:
    tried: dict[Spool, tuple[int, bool]] = {}
    seen: dict[Spool, float] = {}
    due: dict[Spool, float] = {}
    failures: Counter[Spool] = Counter()
    problems: dict[Spool, tuple[str, float]] = {}
    last_needed = time.monotonic()
    while courier.lock_path.exists():  # until someone removes the folder
        now = time.monotonic()
        states = {spool: (spool.size(), spool.is_being_written()) for spool in open_spools(root)}
        ready = []
        patience = live_after.warm if tried else live_after.cold
        for spool, (size, is_alive) in states.items():
            is_new = tried.get(spool) != (size, is_alive)
            if is_alive or is_new:
                last_needed = now
            has_ended = is_new and not is_alive
            is_due = now >= due.get(spool, seen.setdefault(spool, now) + patience)
            if has_ended or (is_due and (is_new or failures[spool])):
                ready.append(spool)
        # The newest first, and last those whose store did not answer: nobody waits for them.
        ready.sort(key=lambda spool: spool.path.name, reverse=True)
        ready.sort(key=lambda spool: failures[spool])
        if ready:
            before = time.process_time()
            trouble = send(ready, LIVE_SEND_SECONDS)
            rest = REST_PER_SECOND * (time.process_time() - before)
            for spool in ready:
                size, is_alive = states[spool]
                is_cut = is_alive and spool not in trouble
                tried[spool] = (spool.read_progress().offset if is_cut else size, is_alive)
                failures[spool] = failures[spool] + 1 if spool in trouble else 0
                pause = min(interval * 2 ** failures[spool], _MAX_INTERVAL_SECONDS)
                due[spool] = time.monotonic() + max(pause, rest)
                problems.pop(spool, None)
            problems |= {spool: (reason, time.time()) for spool, reason in trouble.items()}
            with contextlib.suppress(OSError):
                courier.report(problems)
        elif now > last_needed + linger:
            return
        time.sleep(poll)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 if nothing is left to be sent."""
    parser = argparse.ArgumentParser(prog="python -m implicit_models.tracking.sync")
    parser.description = "Send tracked runs to MLflow that could not be sent before."
    parser.add_argument("--root", type=Path, default=Path("."), help="the repository")
    parser.add_argument("--to", help="tracking store, instead of the one recorded with each run")
    parser.add_argument("--courier", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.courier:
        _detach()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if options.courier:
        os.chdir(options.root)  # DVC may remove the folder of the stage that started it
    send = _sender(options.root, options.to)
    if options.courier:
        serve(options.root, send)
        return 0
    spools = open_spools(options.root)
    problems = send(spools, math.inf)
    for spool, problem in problems.items():
        _logger.error("not sent: %s: %s", spool.path.name, problem)
    if problems and not options.to:
        _logger.error("where the address they were recorded with is wrong: --to ADDRESS")
    if not spools:
        _logger.info("there is nothing left to send")
    else:
        _logger.info("%d of %d runs are sent completely", len(spools) - len(problems), len(spools))
    return 1 if problems else 0


def _sender(root: Path, destination: str | None) -> Send:
    """Give what sends spools; MLflow is imported with the first of them, not before."""

    @functools.cache
    def sender():
        from implicit_models.tracking.mlflow import Sender

        return Sender(root, destination)

    return lambda spools, seconds: sender().send(spools, seconds)


def _detach() -> None:
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


if __name__ == "__main__":
    sys.exit(main())
