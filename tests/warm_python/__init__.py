"""A `python` and a `dvc` for processes that tests start, which have imported libraries already.

Each stage is a process of its own and imports torch and transformers, which takes it longer than
all else that it does with a tiny model; so do the courier, with MLflow, and DVC. Flows, workers,
their runs and Prefect's server import Prefect. So the first test that asks starts two servers
(server.py), which import the ones and the others once they are asked for, and fork for each
process. What tests put first in PATH are a `python` and a `dvc` (client.py) that hand their
arguments, folder, environment, open files and signals over to the server, and end as the fork has
ended; when one is killed, so is the fork. Where it cannot do as the real one would (a script, other
settings of a library that reads them on import), it becomes the real one. What a fork starts with
`sys.executable` has the same `python`; `python -m dvc` is the real one, for flows look among its
child processes for those to stop, and a fork's parent is the server.
"""

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.warm_python import client

IS_THERE = sys.platform == "linux"
HERE = Path(__file__).parent
SCRIPT = """\
#!{python} -IS
import sys
sys.path.insert(0, '{here}')
import client
client.main({python!r}, {folder!r}{given})
"""

_folder: Path | None = None


def folder() -> Path:
    """Return the folder with both, which is there until this process ends."""
    global _folder
    if _folder is None:
        _folder = _start()
    return _folder


def before(path: str) -> str:
    """Return a PATH that finds both first, then this environment's commands."""
    warm = [str(folder())] if IS_THERE else []
    return os.pathsep.join([*warm, str(Path(sys.executable).parent), path])


def python() -> str:
    """Return that `python`, or this process's own where there is none."""
    return str(folder() / "python") if IS_THERE else sys.executable


def for_torchrun() -> dict[str, str]:
    """Return the variable that torchrun takes its processes' `python` from."""
    return {"PYTHON_EXEC": python()} if IS_THERE else {}


def for_own_processes() -> dict[str, str]:
    """Return the variables with which a process starts others by that `python` as its own."""
    if not IS_THERE:
        return {}
    return {"WARM_PYTHON": python(), "PYTHONPATH": str(HERE / "executable")}


@contextlib.contextmanager
def as_own() -> Iterator[None]:
    """Make what this process starts by its own `python` in a block start by that one."""
    before, sys.executable = sys.executable, python()
    try:
        yield
    finally:
        sys.executable = before


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all that it has started, forks in the place of others included."""
    children: dict[int, list[psutil.Process]] = {}
    watching = set()
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            name, parent = each.name(), each.ppid()
            if name.startswith(client.WATCHING):
                watching.add(each.pid)
                parent = int(name.removeprefix(client.WATCHING))
            children.setdefault(parent, []).append(each)
    found, waiting = [psutil.Process(pid)], [pid]
    while waiting:
        for each in children.get(waiting.pop(), ()):
            waiting.append(each.pid)
            found += [each] if each.pid not in watching else []
    return found


def _start() -> Path:
    path = Path(tempfile.mkdtemp(prefix="warm_python_"))  # below /tmp: a socket's address is short
    for name, given in {"python": "", "dvc": ", '-m', 'dvc'"}.items():
        text = SCRIPT.format(python=sys.executable, here=HERE, folder=str(path), given=given)
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    for name in client.WARM:
        _start_server(path / name)
    return path


def _start_server(address: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(64)
        server = subprocess.Popen(
            [sys.executable, HERE / "server.py", str(listener.fileno()), address.name],
            env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
            stdin=subprocess.PIPE,  # its end tells the server to end, however this process ends
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    atexit.register(server.communicate)
