"""Prefect's API for the length of a block: the user's server, the dashboards', or one of our own.

Runs are kept in ``.prefect/prefect.db`` of the repository, whoever writes them: a flow shows in the
dashboards that are started later, and the other way round.
"""

import fcntl
import importlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicit_models.tracking.stores import shown, without_credentials
from pipelines import disk
from pipelines.server.local_server import (
    FOLDER,
    HOST,
    LocalServer,
    ServerError,
    answers,
    prefect_server,
    writing,
)

DASHBOARDS = "server.json"
PATIENCE = 15.0  # seconds that the last states of a flow may take to be recorded


@dataclass(frozen=True)
class OwnApi:
    """The API of this repository's own record.

    Attributes
    ----------
    address
        Of the API, ``"http://127.0.0.1:4200/api"``.
    server
        What serves it where it was started for the block, and may not answer yet; None where the
        dashboards serve it.
    """

    address: str
    server: LocalServer | None = None


@contextmanager
def own_api(root: Path) -> Iterator[OwnApi | None]:
    """Begin to serve this repository's record, if its dashboards do not, and stop at the end.

    A server takes seconds to start: whoever has other things to do before a flow begins it first.

    Yields
    ------
    None where the environment names another server.
    """
    if os.environ.get("PREFECT_API_URL"):
        yield None
        return
    address = dashboards_address(root)
    if address is not None:
        yield OwnApi(address)
        return
    with prefect_server(root) as (address, server):
        yield OwnApi(address, server)


@contextmanager
def prefect_api(root: Path, own: OwnApi | None = None) -> Iterator[str]:
    """Provide the block's flows with an API, and leave with every run of them recorded.

    ``PREFECT_API_URL`` counts where it is set, by the environment or by a profile of Prefect; else
    the server of this repository's dashboards where they run; else a server is started, and
    stopped at the end.

    Parameters
    ----------
    own
        What `own_api` gave, where it was begun before.

    Yields
    ------
    The address of the API; it is among Prefect's settings for the length of the block.

    Raises
    ------
    ServerError
        The server that is set does not answer or refuses, or ours does not start.
    """
    with ExitStack() as stack:
        own = own or stack.enter_context(own_api(root))
        # Prefect takes two seconds to import; a mistake in the command line is told before that.
        with readable_settings():
            from prefect.settings import (
                PREFECT_API_AUTH_STRING,
                PREFECT_API_URL,
                PREFECT_SERVER_API_AUTH_STRING,
                PREFECT_UI_URL,
                temporary_settings,
            )

            given = PREFECT_API_URL.value()
        if given:
            if own and own.server:  # a profile names another
                own.server.stop()
            check_given_server(given)
            stack.callback(send_what_is_left)
            yield given
            return
        assert own is not None  # only the environment keeps ours from being begun
        # What every flow imports takes as long as the server's start, which goes on meanwhile.
        importlib.import_module("prefect.flow_engine")
        import httpx
        from prefect.exceptions import PrefectHTTPStatusError

        from pipelines.server.open_runs import close_open_runs, own_tag

        if own.server:
            _wait_for(own.server)
        password = PREFECT_API_AUTH_STRING.value() or PREFECT_SERVER_API_AUTH_STRING.value()
        page = "" if own.server else own.address.removesuffix("/api")
        updates: dict[Any, Any] = {PREFECT_API_URL: own.address, PREFECT_API_AUTH_STRING: password}
        # Our own server has no user interface that a flow's log could point to.
        updates[PREFECT_UI_URL] = page
        stack.enter_context(without_proxy())
        stack.enter_context(temporary_settings(updates))
        try:
            stack.enter_context(flows_in_progress(root.resolve()))
        except (httpx.HTTPError, PrefectHTTPStatusError) as error:
            said = f"; {own.server.last_words()}" if own.server else ""
            raise ServerError(
                f"{own.address} has stopped answering ({error}){said}; the same command goes on "
                "from there"
            ) from error
        try:
            yield own.address
        finally:
            send_what_is_left()
            close_open_runs(own_tag(root), PATIENCE)


@contextmanager
def readable_settings() -> Iterator[None]:
    """Turn what Prefect finds wrong with its settings into a `ServerError`."""
    try:
        yield
    except Exception as error:  # of the libraries that Prefect reads its settings with
        if not type(error).__module__.startswith(("pydantic", "toml")):
            raise
        raise ServerError(
            f"the settings of Prefect (prefect.toml, .env, a profile) cannot be read; mend "
            f"what it names: {error}"
        ) from error


def _wait_for(server: LocalServer) -> None:
    try:
        server.wait_until_up()
    except ServerError as error:
        anew = (
            f"where its database is damaged, `rm -r {FOLDER}` forgets all runs of flows, "
            "and the next flow makes it anew"
        )
        remedy = disk.MAKE_ROOM if disk.is_full(server.log.parent) else anew
        raise ServerError(f"{error}; {remedy}") from error


def dashboards_address(root: Path) -> str | None:
    """Return the address of the API that this repository's dashboards serve, where it answers."""
    address = dashboards(root).get("prefect")
    return address if address and answers(f"{address}/health") else None


def dashboards(root: Path) -> dict[str, str]:
    """Return what this repository's dashboards serve where they run.

    Returns
    -------
    dict
        Addresses under ``prefect``, of the API, and ``mlflow``.
    """
    file = root.resolve() / FOLDER / DASHBOARDS
    try:
        with file.open("rb") as held:
            # They hold this lock for as long as they live: a file left over misleads nobody.
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except BlockingIOError:
        with suppress(OSError, ValueError):
            served = json.loads(file.read_text())
            return {name: address for name, address in served.items() if address}
    return {}


def check_given_server(address: str) -> None:
    """Check the server that the user has named.

    Raises
    ------
    ServerError
        It does not answer, or wants other credentials.
    """
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    place = shown(address)
    remedy = (
        "start that server, or unset PREFECT_API_URL (where a profile sets it: "
        "prefect config unset PREFECT_API_URL; or in prefect.toml, .env) to keep the runs in this "
        "repository"
    )
    try:
        httpx.get(f"{address.rstrip('/')}/health", timeout=10, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = without_credentials(str(error))
        raise ServerError(f"PREFECT_API_URL={place} does not answer ({why}); {remedy}") from error
    with get_client(sync_client=True) as client:
        try:
            client.read_flow_runs(limit=1)
        except PrefectHTTPStatusError as error:
            status = error.response.status_code
            if status in (401, 403):
                remedy = "set PREFECT_API_AUTH_STRING=user:password, or PREFECT_API_KEY"
            elif status == 404:
                remedy = f"its API mostly ends in /api: PREFECT_API_URL={place.rstrip('/')}/api"
            raise ServerError(f"PREFECT_API_URL={place} answers {status}; {remedy}") from error


@contextmanager
def flows_in_progress(root: Path) -> Iterator[None]:
    """Count as one of this repository's flows; the first and the last close what was left open.

    A process that is killed outright leaves its runs as they were. Nobody else begins runs of this
    repository's tag while nobody holds the lock, so that those open then belong to nobody.
    """
    import httpx
    from prefect import tags
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    from pipelines.server.open_runs import close_left_over_runs, own_tag

    folder, tag = root / FOLDER, own_tag(root)
    with writing(folder):
        lock = (folder / "flows").open("a+b")
    with lock as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            close_left_over_runs(tag)
        fcntl.flock(held, fcntl.LOCK_SH)
        try:
            with tags(tag):
                yield
        finally:
            # The last to leave looks again: a signal may have cut off a run of its own.
            with (
                suppress(BlockingIOError, httpx.HTTPError, PrefectHTTPStatusError),
                temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            ):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                close_left_over_runs(tag)


@contextmanager
def without_proxy() -> Iterator[None]:
    """Make requests to this machine pass by the proxy that the environment may name."""
    before = {name: os.environ.get(name) for name in ("NO_PROXY", "no_proxy")}
    for name, value in before.items():
        os.environ[name] = f"{value},{HOST}" if value else HOST
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def send_what_is_left() -> None:
    """Wait until events, which carry the states of tasks, and logs have left this process."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=PATIENCE, at_exit=False)
