"""Tiny DVC projects of shell commands, and flows run in them."""

import fcntl
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

from pipelines.server.local_server import prefect_server
from tests import warm_python

ROOT = Path(__file__).parents[2]
LEFT_OUT = ("DVC_", "GIT_", "MLFLOW_", "PREFECT_", "OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")
FLOW = ("-m", "pipelines.reproduce")


@dataclass
class Project:
    """A DVC project, without git unless a test makes it a repository."""

    path: Path
    environment: dict[str, str] = field(default_factory=dict)
    served: Path | None = None

    @property
    def record(self) -> Path:
        """Where the record is that Prefect's server writes."""
        return self.served or self.path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Python with these arguments, both its outputs in one pipe."""
        kept = {name: v for name, v in os.environ.items() if not name.startswith(LEFT_OUT)}
        return subprocess.Popen(
            [warm_python.python(), *arguments],
            cwd=self.path,
            env={**kept, "PYTHONPATH": str(ROOT), **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, status: int = 0) -> str:
        """Run Python with these arguments, that must end with this exit status."""
        process = self.start(*arguments)
        output = process.communicate()[0]
        assert process.returncode == status, output
        return output

    def flow(self, *arguments: str, status: int = 0) -> str:
        """Run the flow."""
        return self.run(*FLOW, *arguments, status=status)

    def status(self) -> str:
        """Ask DVC what is not up to date."""
        return self.run("-m", "dvc", "status", "--json").strip()

    def lines(self, file: str) -> list[str]:
        """Read the lines of a file that stages append to."""
        path = self.path / file
        return path.read_text().splitlines() if path.exists() else []

    def states(self) -> tuple[str, dict[str, str]]:
        """Read the state of the last flow of this project, and those of its tasks, by name."""
        (run_id, state), *_ = self.ask(
            "select id, state_name from flow_run order by created desc limit 1"
        )
        tasks = self.ask("select name, state_name from task_run where flow_run_id = ?", run_id)
        return state, dict(tasks)

    def ask(self, query: str, *values: str) -> list[tuple]:
        """Ask the database of the record, once what was sent there is written."""
        with closing(sqlite3.connect(self.record / ".prefect" / "prefect.db")) as database:
            return database.execute(query, values).fetchall()


@contextmanager
def serve(path: Path) -> Iterator[Callable[[Project], Project]]:
    """Serve a record of Prefect for a block; yield what makes a project's flows use it."""
    path.mkdir(exist_ok=True)
    with warm_python.as_own(), prefect_server(path) as (address, server):
        server.wait_until_up()

        def use(made: Project) -> Project:
            made.environment["PREFECT_API_URL"] = address
            made.served = path
            return made

        yield use


def record_of(template: Path, path: Path) -> None:
    """Copy an empty record of Prefect to a folder: its server takes seconds to make the tables."""
    (path / ".prefect").mkdir(parents=True, exist_ok=True)
    shutil.copy(template, path / ".prefect" / "prefect.db")


def make_empty_record(folder: Path) -> Path:
    """Return an empty database of Prefect's server, which one process makes for all."""
    folder.mkdir(exist_ok=True)
    made = folder / "prefect.db"
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            with serve(folder):
                pass
            partial = folder / "partial.db"
            with (
                closing(sqlite3.connect(folder / ".prefect" / "prefect.db")) as source,
                closing(sqlite3.connect(partial)) as target,
            ):
                source.backup(target)
            partial.rename(made)
    return made


def project(path: Path, stages: Mapping, parameters: Mapping | None = None) -> Project:
    """Make a project of a dvc.yaml."""
    (path / ".dvc").mkdir(parents=True)
    (path / ".dvc" / "config").write_text("[core]\n    analytics = false\n    no_scm = true\n")
    (path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    if parameters is not None:
        (path / "params.yaml").write_text(yaml.safe_dump(parameters, sort_keys=False))
    return Project(path)


def stage(command: str, deps: tuple[str, ...] = (), outs: tuple[str, ...] = ()) -> dict:
    """Describe a stage whose command is a line of shell."""
    return {"cmd": command, "deps": list(deps), "outs": list(outs)}


def kill_its_server(flow: subprocess.Popen[str]) -> None:
    """Kill the server of Prefect that a flow has started for itself."""
    servers = [each for each in warm_python.family(flow.pid) if _is_server(each)]
    assert servers
    for server in servers:
        with suppress(psutil.NoSuchProcess):  # one that another's end has ended
            server.kill()


def _is_server(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return any("api_server" in word for word in process.cmdline())
    return False


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Look every few milliseconds until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def interrupt_when(process: subprocess.Popen[str], file: Path, number: int) -> str:
    """Send a process a signal once a file is there; returns what it has printed at its end."""
    wait_until(lambda: file.exists() or process.poll() is not None)
    process.send_signal(signal.Signals(number))
    return process.communicate(timeout=90)[0]
