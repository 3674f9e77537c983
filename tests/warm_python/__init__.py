"""A `python` and a `dvc` for processes that tests start, which have imported libraries already.

Each stage is a process of its own and imports torch and transformers, which takes it longer than
all else that it does with a tiny model; so do the courier, with MLflow, and DVC. So the first test
that asks starts a server (server.py), which imports them once and forks for each process. What
tests put first in PATH are a `python` and a `dvc` (client.py) that hand their arguments, folder,
environment, standard streams and signals over to the server, and end as the fork has ended; when
one is killed, so is the fork. Where it cannot do as the real one would (a script, other settings
of a library that reads them on import), it becomes the real one. What a fork starts with
`sys.executable` has the same `python`; `python -m dvc` is the real one, for flows look among its
child processes for those to stop, and a fork's parent is the server.
"""

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

IS_THERE = sys.platform == "linux"
HERE = Path(__file__).parent
SCRIPT = """\
#!{python} -IS
import sys
sys.path.insert(0, '{here}')
import client
client.main({python!r}, {address!r}{given})
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


def for_torchrun() -> dict[str, str]:
    """Return the variable that torchrun takes its processes' `python` from."""
    return {"PYTHON_EXEC": str(folder() / "python")} if IS_THERE else {}


def for_own_processes() -> dict[str, str]:
    """Return the variables with which a process starts others by that `python` as its own."""
    if not IS_THERE:
        return {}
    return {"WARM_PYTHON": str(folder() / "python"), "PYTHONPATH": str(HERE / "executable")}


def _start() -> Path:
    path = Path(tempfile.mkdtemp(prefix="warm_python_"))  # below /tmp: a socket's address is short
    address = path / "socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen(64)
    for name, given in {"python": "", "dvc": ", '-m', 'dvc'"}.items():
        text = SCRIPT.format(python=sys.executable, here=HERE, address=str(address), given=given)
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, HERE / "server.py", str(listener.fileno())],
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        stdin=subprocess.PIPE,  # its end tells the server to end, however this process ends
        stdout=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        start_new_session=True,
    )
    listener.close()
    atexit.register(server.communicate)
    return path
