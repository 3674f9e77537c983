"""What the commands that run flows have in common: mistakes, exit status, lines of a log."""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from pipelines import disk
from pipelines.handing_over import mistake
from pipelines.outcomes import Outcomes
from pipelines.processes import stopping
from pipelines.server.embedded import OwnApi, prefect_api
from pipelines.server.local_server import ServerError
from pipelines.signals import handled_signals

FAILED, UNRECORDED = 1, 3
AGAIN = "the same command goes on from there"

# On a terminal a line is a time, a task and what it says.
_FORMATS = {
    "PREFECT_LOGGING_FORMATTERS_STANDARD_DATEFMT": "%H:%M:%S",
    "PREFECT_LOGGING_FORMATTERS_STANDARD_FLOW_RUN_FMT": "%(asctime)s | %(message)s",
    "PREFECT_LOGGING_FORMATTERS_STANDARD_TASK_RUN_FMT": (
        "%(asctime)s | %(task_run_name)s | %(message)s"
    ),
}


def without_room(error: OSError) -> int:
    """Print in one line that the disk is full; return the exit status. Raises any other error."""
    if not disk.refused(error):
        raise error
    print(f"error: {error}; {disk.MAKE_ROOM}; then {AGAIN}", file=sys.stderr)
    return FAILED


def of_dvc(error: Exception) -> int:
    """Print in one line what DVC or Hydra refuses; return the exit status. Raises another error."""
    if not type(error).__module__.startswith(("dvc.", "hydra.", "omegaconf.")):
        raise error
    return mistake(error)


def is_of_prefect(error: BaseException) -> bool:
    """Return whether an error is of Prefect or of the way to its server."""
    return type(error).__module__.startswith(("prefect.", "httpx", "httpcore", "sqlalchemy."))


@contextlib.contextmanager
def signals_interrupt(outcomes: Outcomes) -> Iterator[None]:
    """Make SIGTERM and SIGHUP end a block as Ctrl-C does, where its flow does not handle them.

    Libraries turn the interrupt into errors of their own, or lose it in a finaliser: the outcomes
    know of the signal whatever they do. What is cleared up then is interrupted by a second wish
    alone.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        repeats = outcomes.insistence.repeats(number)
        if outcomes.stopped_by is None or repeats:
            outcomes.stopped_by = number
            raise KeyboardInterrupt

    with handled_signals(interrupt):
        try:
            yield
        except Exception as error:
            if outcomes.stopped_by is None:
                raise
            raise KeyboardInterrupt from error


@contextlib.contextmanager
def recorded(root: Path, outcomes: Outcomes, own: OwnApi | None) -> Iterator[None]:
    """Provide a block with an API of Prefect; what Prefect itself suffers is noted in the outcomes.

    Parameters
    ----------
    own
        What `own_api` gave, begun before.

    Raises
    ------
    ServerError
        There is no API, or it has not what the block needs.
    """
    for name, value in _FORMATS.items():
        os.environ.setdefault(name, value)
    began = False
    try:
        with prefect_api(root, own) as address, _patience(address):
            _shorten_logs()
            began = True
            yield
    except ServerError:
        raise
    except Exception as error:
        if not began:
            raise
        outcomes.note_unrecorded(error)


def tell_unrecorded(outcomes: Outcomes, kept: str | None) -> None:
    """Print why Prefect's record lacks something, if it does, and who has the results, if any."""
    if outcomes.unrecorded:
        results = f". The results do not depend on it: {kept}" if kept else ""
        room = f"; {disk.MAKE_ROOM}" if disk.is_full(Path.cwd()) else ""
        print(
            f"Prefect's record of this flow is not complete ({outcomes.unrecorded}{room}){results}",
            file=sys.stderr,
        )


def tell_stopped(outcomes: Outcomes) -> int | None:
    """Print that the flow was stopped, if it was; return the exit status then."""
    if not (stopping() or outcomes.stopped_by is not None):
        return None
    print(f"stopped; {AGAIN}", file=sys.stderr)
    return 128 + (outcomes.stopped_by or signal.SIGTERM)


def core_share(jobs: int) -> dict[str, str]:
    """Return the environment in which one of so many jobs has its share of this machine's cores.

    Nothing where there is one job, or the user has shared them.
    """
    name = "OMP_NUM_THREADS"
    if jobs == 1 or name in os.environ:
        return {}
    has_affinity = hasattr(os, "sched_getaffinity")  # Linux
    num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return {name: str(max(1, num_cores // jobs))}


@contextlib.contextmanager
def _patience(address: str) -> Iterator[None]:
    """Make Prefect give up soon on a server of this machine: one that is gone stays away."""
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    is_here = urlsplit(address).hostname in ("127.0.0.1", "localhost")
    if is_here and "PREFECT_CLIENT_MAX_RETRIES" not in os.environ:
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 2}):
            yield
    else:
        yield


def _shorten_logs() -> None:
    """Keep from the terminal what Prefect says of every state: tasks say that themselves."""
    from prefect.logging.configuration import setup_logging
    from prefect.logging.handlers import PrefectConsoleHandler

    # Anew, for Prefect may have been imported before the form of a line was set.
    setup_logging(incremental=False)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrefectConsoleHandler):
            handler.addFilter(_is_worth_a_line)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    if record.name.startswith(("prefect._internal.concurrency", "prefect.events.clients")):
        return False  # events that a server which is gone does not take, each with a page of text
    if not record.pathname.endswith(("task_engine.py", "flow_engine.py")):
        return True
    if record.exc_info and type(record.exc_info[1]).__module__.startswith("httpx"):
        return False  # the server is gone, which is told at the end
    message = record.getMessage()
    if message.startswith("View at "):  # there is a page
        return True
    return record.levelno >= logging.WARNING and not message.startswith(
        ("Finished in state", "Task run failed with")
    )
