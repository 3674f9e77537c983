"""Show flows in Prefect's user interface and tracked runs in MLflow's, on this machine alone.

Both read SQLite files of the repository, and end on Ctrl-C, or as soon as one of them ends. What
``PREFECT_API_URL`` or ``MLFLOW_TRACKING_URI`` keeps elsewhere is named and not served.
"""

import argparse
import fcntl
import json
import os
import signal
import sys
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from implicit_models.tracking.stores import shown
from pipelines.server.comparison import ComparisonPage, comparison_page, reproduced
from pipelines.server.embedded import DASHBOARDS, readable_settings
from pipelines.server.local_server import (
    FOLDER,
    HOST,
    LocalServer,
    ServerError,
    bound_socket,
    prefect_server,
    start_kept,
    writing,
)

ROOT = Path(__file__).parent.parent
DEFAULT_STORE = "sqlite:///mlflow.db"


def main() -> int:
    """Serve until Ctrl-C, a signal, or the end of one of the servers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=5000, help="the first port to try for MLflow")
    parser.add_argument(
        "--prefect-port", type=int, default=4200, help="the first port to try for Prefect"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    parser.add_argument("--invoker", type=int, help="the process with whose end they end")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with announced(options.root) as file:
            if file is None:
                return 0
            ports = options.port, options.prefect_port
            return serve(options.root, file, *ports, invoker=options.invoker)
    except ServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def serve(
    root: Path, file: Path, port: int, prefect_port: int, *, invoker: int | None = None
) -> int:
    """Start what is kept in this repository, say where everything is, and wait.

    Parameters
    ----------
    file
        Where the addresses are written for flows.
    port, prefect_port
        The first ports to try for MLflow and for Prefect.
    invoker
        The process with whose end they end, as make does not end what it has begun when it is
        killed; None for nobody.

    Returns
    -------
    int
        0 where there is nothing to serve or the invoker has ended, 1 as soon as a server has
        ended by itself.
    """
    servers: list[LocalServer] = []
    addresses: dict[str, str] = {}
    print("starting ...", flush=True)
    with ExitStack() as stack:
        store = os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_STORE
        if store.startswith("sqlite:"):
            addresses["mlflow"], server = start_mlflow(root, store, port)
            stack.callback(server.stop)
            servers.append(server)
        else:
            place = shown(store)
            print(f"MLFLOW_TRACKING_URI is set: the runs are at {place}, which is not served here")
        elsewhere = prefect_api_url()
        if elsewhere is None:
            # MLflow starts meanwhile.
            addresses["prefect"], server = stack.enter_context(
                prefect_server(root, complete=True, port=prefect_port)
            )
            servers.append(server)
        else:
            place = shown(elsewhere)
            print(f"PREFECT_API_URL is set: the flows are at {place}, which is not served here")
        for server in servers:
            server.wait_until_up()
        file.write_text(json.dumps(addresses))
        show(addresses, root)
        return wait_for_an_end(servers, invoker) if servers else 0


def show(addresses: dict[str, str], root: Path, *, browser: bool = True) -> None:
    """Print the pages that are served, and open them where there is a screen."""
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    for key, name in (("prefect", "Prefect"), ("mlflow", "MLflow")):
        if key in addresses:
            page = addresses[key].removesuffix("/api")
            print(f"{name + ':':9}{page}", flush=True)
            if key == "mlflow" and (comparison := comparison_of(page, root)):
                page = comparison.address
                print(f"the last reproduction, implicit beside explicit:\n{'':9}{page}", flush=True)
                if comparison.num_shown < comparison.num_found:
                    print(
                        f"{'':9}({comparison.num_shown} of its {comparison.num_found} runs: in "
                        "turns the best of each kind)",
                        flush=True,
                    )
            if screen and browser:
                webbrowser.open(page)
    if browser and addresses:
        print("Ctrl-C stops", "them" if len(addresses) > 1 else "it", flush=True)


def comparison_of(mlflow: str, root: Path) -> ComparisonPage | None:
    """Return the page that compares the runs of the last report; None without one."""
    try:
        return comparison_page(mlflow, reproduced(root))
    except (OSError, ValueError, KeyError) as error:
        print(f"the last reproduction cannot be compared: {error}", file=sys.stderr)
        return None


@contextmanager
def announced(root: Path, patience: float = 2.0) -> Iterator[Path | None]:
    """Hold the lock that says that this repository's dashboards run; None where they do already.

    Flows look at the lock before they believe what the file says.
    """
    file = root.resolve() / FOLDER / DASHBOARDS
    with writing(file.parent):
        file.parent.mkdir(exist_ok=True)
        lock = file.open("ab")
    with lock as held:
        end = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # A flow that looks holds it for a moment.
                if time.monotonic() > end:
                    print("this repository's dashboards run already")
                    show(json.loads(file.read_text() or "{}"), root, browser=False)
                    yield None
                    return
                time.sleep(0.1)
        file.write_text("{}")
        try:
            yield file
        finally:
            file.write_text("{}")


def prefect_api_url() -> str | None:
    """Return the address that the environment or a profile of Prefect names."""
    with readable_settings():
        from prefect.settings import PREFECT_API_URL

        return PREFECT_API_URL.value()


def start_mlflow(root: Path, store: str, port: int) -> tuple[str, LocalServer]:
    """Start MLflow's server on an SQLite file; return its address and the server."""
    with bound_socket(port) as free:
        number = free.getsockname()[1]
    address = f"http://{HOST}:{number}"
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    command += ["--host", HOST, "--port", str(number), "--workers", "1"]
    server = start_kept(
        "MLflow",
        command,
        health=f"{address}/health",
        environment=os.environ | settings,
        folder=root,
        log=root.resolve() / FOLDER / "mlflow.log",
    )
    return address, server


def wait_for_an_end(servers: Sequence[LocalServer], invoker: int | None = None) -> int:
    """Return 1 as soon as one of the servers has ended by itself, 0 as soon as the invoker has."""
    while invoker is None or lives(invoker):
        for server in servers:
            status = server.process.poll()
            if status is not None:
                print(
                    f"error: {server.name} has ended by itself (exit status {status}); "
                    f"{server.last_words()}; `make dashboards` starts it again",
                    file=sys.stderr,
                )
                return 1
        time.sleep(0.5)
    return 0


def lives(pid: int) -> bool:
    """Return whether a process has not ended, be it that nobody has asked how."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    raise SystemExit(main())
