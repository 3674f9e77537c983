"""Slots of a global concurrency limit of Prefect, waited for as long as nobody stops the flow."""

import contextlib
import time
from collections.abc import Iterator

import httpx
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from pipelines.running import Log, pause
from pipelines.server.local_server import ServerError

_LOOK_SECONDS = 2.0
_SERVER_PATIENCE = 600.0  # seconds that Prefect's server may be away


def check_limit(name: str) -> None:
    """Look whether Prefect has a limit.

    Raises
    ------
    ServerError
        It has not.
    """
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound as error:
            address = str(client.api_url).rstrip("/")
            raise ServerError(
                f"Prefect has no limit {name}; make it: `PREFECT_API_URL={address} prefect gcl "
                f"create {name} --limit 4` (with PREFECT_API_URL set or `make dashboards` running, "
                "for else that server is gone by now)"
            ) from error


@contextlib.contextmanager
def held_slot(name: str | None, log: Log) -> Iterator[None]:
    """Hold a slot of a limit; of no limit there is always one.

    A server that does not answer is waited for, ten minutes from its last answer.

    Raises
    ------
    StoppedError
        The flow was stopped while this waited.
    """
    with contextlib.ExitStack() as stack:
        told = ""
        answered = time.monotonic()
        while name is not None:
            # One attempt: Prefect itself would wait where nobody can stop it. And a server that
            # is gone for a moment is no reason to give up the work that holds the slot.
            slot = concurrency(name, max_retries=0, raise_on_lease_renewal_failure=False)
            try:
                stack.enter_context(slot)
                break
            except Exception as error:
                if _is_taken(error):
                    answered = time.monotonic()
                    line = f"waiting for a slot of the limit {name}"
                elif _is_away(error) and time.monotonic() - answered < _SERVER_PATIENCE:
                    line = f"Prefect's server does not answer: waiting for it, and a slot of {name}"
                else:
                    raise
            if line != told:
                log(line)
                told = line
            pause(_LOOK_SECONDS)
        yield


def _is_taken(error: Exception) -> bool:
    cause = error.__cause__
    return (
        isinstance(cause, httpx.HTTPStatusError)
        and cause.response.status_code == httpx.codes.LOCKED
    )


def _is_away(error: Exception) -> bool:
    """Return whether the server has not been reached, or is out of service behind a proxy."""
    cause = error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        return cause.response.is_server_error
    return isinstance(cause, httpx.TransportError)
