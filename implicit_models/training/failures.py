"""What fails on one of several processes fails on all of them."""

from collections.abc import Callable
from typing import TypeVar

from torch.distributed.checkpoint.api import CheckpointException

from implicit_models.training.distributed import Processes

T = TypeVar("T")


def on_all(processes: Processes, action: Callable[[], T]) -> T:
    """Return what an action gives on this process; raise on all where it fails on one."""
    results: list[T] = []
    failure: Exception | None = None
    try:
        results.append(action())
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        if not isinstance(cause, Exception):  # it holds a KeyboardInterrupt as well
            raise cause from None
        failure = cause
    except Exception as error:
        failure = error
    said = processes.gathered(described(failure) if failure else None)
    if failure is not None:
        raise failure
    for rank, cause in enumerate(said):
        if cause is not None:
            raise RuntimeError(f"process {rank}: {cause}")
    return results[0]


def described(error: BaseException) -> str:
    """Return an error in one line."""
    if isinstance(error, CheckpointException):
        return "; ".join(described(cause) for cause, _ in error.failures.values())
    first = next(iter(str(error).splitlines()), "")  # torch's can be a page
    return f"{type(error).__name__}: {first}"
