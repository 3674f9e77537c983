"""Servers for tests: Prefect's and MLflow's, on PostgreSQL where it is installed."""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.server.local_server import HOST, QUIET, bound_socket, start_kept

_OTHER_USERS = ("postgres", "nobody")  # PostgreSQL does not run as root


@dataclass(frozen=True)
class Servers:
    """Where the servers answer, and what they keep their runs in."""

    prefect: str
    mlflow: str
    database: str

    @property
    def environment(self) -> dict[str, str]:
        """What makes Prefect and MLflow use them."""
        quiet = {**QUIET, "MLFLOW_DISABLE_TELEMETRY": "true", "PREFECT_WORKER_QUERY_SECONDS": "1"}
        return {"PREFECT_API_URL": self.prefect, "MLFLOW_TRACKING_URI": self.mlflow, **quiet}


@contextlib.contextmanager
def running_servers(folder: Path) -> Iterator[Servers]:
    """Run both servers for the length of a block."""
    with contextlib.ExitStack() as stack:
        postgresql = stack.enter_context(_postgresql())
        if postgresql:
            stores = {
                "prefect": f"postgresql+asyncpg://{postgresql}/prefect",
                "mlflow": f"postgresql+psycopg2://{postgresql}/mlflow",
            }
        else:
            stores = {
                "prefect": f"sqlite+aiosqlite:///{folder}/prefect.db",
                "mlflow": f"sqlite:///{folder}/mlflow.db",
            }
        ports = {name: _free_port() for name in stores}
        prefect = f"http://{HOST}:{ports['prefect']}/api"
        mlflow = f"http://{HOST}:{ports['mlflow']}"
        own = {
            "PREFECT_API_URL": prefect,
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": stores["prefect"],
            "PREFECT_HOME": str(folder / "prefect"),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        commands = {
            "prefect": ["prefect", "server", "start", "--host", HOST],
            "mlflow": [
                *("mlflow", "server", "--host", HOST, "--workers", "1"),
                *("--backend-store-uri", stores["mlflow"]),
                *("--artifacts-destination", str(folder / "artifacts")),
            ],
        }
        health = {"prefect": f"{prefect}/health", "mlflow": f"{mlflow}/health"}
        started = []
        for name, command in commands.items():
            server = start_kept(
                name,
                [sys.executable, "-m", *command, "--port", str(ports[name])],
                health=health[name],
                environment={**os.environ, **QUIET, **own},
                folder=folder,
                log=folder / f"{name}.log",
            )
            stack.callback(server.stop)
            started.append(server)
        for server in started:
            server.wait_until_up()
        yield Servers(prefect, mlflow, "PostgreSQL" if postgresql else "SQLite")


@contextlib.contextmanager
def _postgresql() -> Iterator[str | None]:
    """Run PostgreSQL with a database for each server; None where it cannot be had."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    user = _user_for_postgresql()
    if not binaries or user is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
    port = _free_port()
    try:
        if os.geteuid() == 0:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)

        def run(program: str, *arguments: str) -> None:
            command = [binaries[-1] / program, *arguments]
            as_user = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
            done = subprocess.run(
                command,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                **(as_user if os.geteuid() == 0 else {}),
            )
            assert done.returncode == 0, done.stdout

        data = str(folder / "data")
        run("initdb", "--pgdata", data, "--username", "tester", "--auth", "trust", "--no-sync")
        options = f"-c listen_addresses={HOST} -c port={port} -c fsync=off -k {folder}"
        log = str(folder / "log")
        run("pg_ctl", "--pgdata", data, "--log", log, "--options", options, "--wait", "start")
        try:
            for name in ("prefect", "mlflow"):
                run("createdb", "--host", HOST, "--port", str(port), "--username", "tester", name)
            yield f"tester@{HOST}:{port}"
        finally:
            run("pg_ctl", "--pgdata", data, "--mode", "immediate", "--wait", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user_for_postgresql() -> str | None:
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in _OTHER_USERS if name in known), None)


def _free_port() -> int:
    with bound_socket() as bound:
        return bound.getsockname()[1]
