"""Do the same to many things in several processes, none of which outlives this one."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context
from typing import Any, TypeVar

from implicit_models.problems.text.data.shards import CorpusError

Item = TypeVar("Item")

VARIABLE = "IMPLICIT_MODELS_PREPARE_PROCESSES"

_POLL_SECONDS = 0.5


def num_cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_processes() -> int:
    """Return how many processes prepare a corpus: as many as `VARIABLE` names, or as cores exist.

    Raises
    ------
    CorpusError
        If the variable is no number from 1.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return num_cores()
    if not text.isdecimal() or int(text) < 1:
        raise CorpusError(f"{VARIABLE} = {text!r} is not allowed; allowed is a number from 1")
    return int(text)


def each(
    job: Callable[[Item, Callable[[int], None]], None],
    items: Sequence[Item],
    processes: int,
    progress: Callable[[int], None],
) -> Iterator[Item]:
    """Do a job to every item and yield the items in the order in which they are done.

    One process does it here; several are started anew and do an item each at a time. They end with
    the first error, which is raised here, and when this process ends, be it killed.

    Parameters
    ----------
    job
        What is to be done, to an item; it tells its second argument how far it has got since it
        told last. It is sent to the other processes once, and so are the items, each to one.
    progress
        Is told every now and then what all jobs have told together.
    """
    processes = min(processes, len(items))
    if processes < 2:
        total = 0

        def advance(amount: int) -> None:
            nonlocal total
            total += amount
            progress(total)

        for item in items:
            job(item, advance)
            yield item
        return
    yield from _in_processes(job, items, processes, progress)


def _in_processes(
    job: Callable[[Item, Callable[[int], None]], None],
    items: Sequence[Item],
    processes: int,
    progress: Callable[[int], None],
) -> Iterator[Item]:
    context = get_context("spawn")  # a fork would inherit locks of the tokenizers' threads
    total = context.Value("q", 0)
    alive, here = context.Pipe(duplex=False)
    threads = max(1, num_cores() // processes)
    with contextlib.ExitStack() as stack:
        executor = ProcessPoolExecutor(
            processes, context, initializer=_start, initargs=(job, total, alive, threads)
        )
        stack.callback(executor.shutdown, cancel_futures=True)
        stack.callback(here.close)  # first: who still works then stops
        pending = {executor.submit(_do, item): item for item in items}
        try:
            while pending:
                done, _ = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
                progress(total.value)
                for future in done:
                    future.result()
                    yield pending.pop(future)
        except BrokenProcessPool:
            raise CorpusError(
                f"one of {processes} processes was killed, perhaps for want of memory; what is "
                f"finished stays: start again, with fewer processes in {VARIABLE} if it was"
            ) from None
        executor.shutdown()


_work: dict[str, Any] = {}  # of a process that was started here


def _start(job: Any, total: Any, alive: connection.Connection, threads: int) -> None:
    """Make a new process ready for jobs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    _work.update(job=job, total=total)


def _end_with(alive: connection.Connection) -> None:
    """End this process when the one that started it closes its end, or is gone."""
    alive.poll(None)
    os._exit(1)


def _do(item: Any) -> None:
    _work["job"](item, _advance)


def _advance(amount: int) -> None:
    total = _work["total"]
    with total.get_lock():
        total.value += amount
