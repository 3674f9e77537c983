"""Servers on this machine that end with whoever started them; Prefect's is one of them."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipelines import disk

HOST = "127.0.0.1"
FOLDER = ".prefect"
LOG_BYTES = 1_000_000

#: Nothing is sent to anybody, and nothing asks for it.
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}


class ServerError(Exception):
    """A server cannot be started or reached; the message says what to do."""


@dataclass(frozen=True)
class LocalServer:
    """A started server: who it is, where it says that it is well, and what it has said."""

    name: str
    health: str
    process: subprocess.Popen
    log: Path

    def wait_until_up(self, patience: float = 120.0) -> None:
        """Wait until the server answers.

        Raises
        ------
        ServerError
            It ended instead, or did not answer within `patience` seconds.
        """
        end = time.monotonic() + patience
        while not answers(self.health):
            if self.process.poll() is not None:
                raise ServerError(
                    f"{self.name} did not start; {self.last_words()}; mend that, and call again"
                )
            if time.monotonic() > end:
                raise ServerError(
                    f"{self.name} did not answer within {patience:.0f} s; {self.last_words()}; "
                    "call again once the machine is less busy"
                )
            time.sleep(0.05)

    def stop(self, patience: float = 15.0) -> None:
        """End the server and whatever it has started, by force after `patience` seconds."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def last_words(self) -> str:
        """Return the last line of the log, and where the rest is."""
        lines = self.log.read_text(errors="replace").splitlines()
        said = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"its last line: {said} (all of it: {self.log})"


def start_kept(
    name: str,
    command: Sequence[str],
    *,
    health: str,
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    keep_open: Sequence[int] = (),
) -> LocalServer:
    """Start a server that ends with this process, however this process ends.

    Parameters
    ----------
    health
        The address that answers as soon as the server is up.
    environment
        The whole environment of the command.
    folder
        Where it runs.
    log
        What the server prints is added to it; it starts anew when it has grown large.
    keep_open
        File descriptors that the command inherits.
    """
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.unlink()
    # By path and with -P: the keeper needs nothing of this package, whose folder must not come
    # before the packages installed.
    keeper = [sys.executable, "-P", str(Path(__file__).with_name("keeper.py"))]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*keeper, *command],
            cwd=folder,
            env={"PYTHONUNBUFFERED": "1", **environment},  # its last words are the log's last line
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=keep_open,
            start_new_session=True,
        )
    return LocalServer(name, health, process, log)


@contextmanager
def prefect_server(
    root: Path, *, complete: bool = False, port: int = 0
) -> Iterator[tuple[str, LocalServer]]:
    """Serve the runs in ``.prefect/prefect.db`` of the repository at `root` for a block.

    Parameters
    ----------
    complete
        With the user interface and every service; otherwise with what flows need.
    port
        The first port to try; 0 takes any.

    Yields
    ------
    The address of its API, and the server, which does not answer yet.

    Raises
    ------
    ServerError
        No port is free, or the folder cannot be written.
    """
    folder = root.resolve() / FOLDER
    with writing(folder):
        folder.mkdir(exist_ok=True)
    listening = bound_socket(port)
    address = f"http://{HOST}:{listening.getsockname()[1]}/api"
    environment = os.environ | QUIET | {"PREFECT_SERVER_API_BASE_PATH": "/api"}
    database = f"sqlite+aiosqlite:///{folder / 'prefect.db'}"
    environment |= {
        "PREFECT_API_URL": address,
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database,
        "PREFECT_SERVER_UI_API_URL": address,
    }
    if not complete:
        # The user interface asks for the types of blocks; flows do not.
        environment["PREFECT_SERVER_REGISTER_BLOCKS_ON_START"] = "false"
    command = [sys.executable, "-P", str(Path(__file__).with_name("api_server.py"))]
    command += ["--socket", str(listening.fileno()), *(["--complete"] if complete else [])]
    with listening, writing(folder):
        server = start_kept(
            "Prefect's server",
            [*command, "--lock", str(folder / "starting")],
            health=f"{address}/health",
            environment=environment,
            folder=root,
            log=folder / "prefect.log",
            keep_open=[listening.fileno()],
        )
    try:
        yield address, server
    finally:
        server.stop()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what keeps a block from writing the record into a `ServerError` that says what to do."""
    try:
        yield
    except OSError as error:
        if disk.refused(error):
            raise ServerError(f"{folder}: {error.strerror}; {disk.MAKE_ROOM}") from error
        raise ServerError(
            f"{folder}, where runs of flows are recorded, cannot be written ({error.strerror}); "
            "make it a folder that can, or name a server: PREFECT_API_URL"
        ) from error


def bound_socket(first: int = 0, tries: int = 100) -> socket.socket:
    """Return a socket bound to localhost, on the first free port from `first` on; 0: on any."""
    for port in range(first, first + tries) if first else [0]:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((HOST, port))
            bound.listen()  # before that others may bind the same port
        except OSError:
            bound.close()
            continue
        return bound
    raise ServerError(
        f"no free port from {first} to {first + tries - 1}; --port names another first one"
    )


def answers(address: str, patience: float = 5.0) -> bool:
    """Return whether a server on this machine answers, past any proxy, that all is well."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        direct.open(address, timeout=patience).close()
    except (urllib.error.URLError, OSError, ValueError):
        return False
    return True
