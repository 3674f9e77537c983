"""The process that has imported libraries, once the first has asked, and forks."""

import ast
import atexit
import contextlib
import fcntl
import gc
import importlib
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
from pathlib import Path
from typing import NoReturn

# Beside this script:
from client import LEARNING, MOST_FILES, ORCHESTRATION, WATCHING, read_on_import

DVC = (
    *("dvc.cli.parser", "dvc.repo", "dvc.repo.reproduce", "dvc.repo.experiments", "dvc.stage.run"),
    *("dvc.api", "dvc_data.index", "dvc_objects.fs.local", "hydra.compose", "scmrepo.git"),
)
# What stages, the courier and DVC import, or flows, workers and Prefect's server; never modules of
# a clone, which may be other ones there, nor one that is run itself.
LIBRARIES = {
    LEARNING: (
        *("transformers.modeling_utils", "transformers.generation.utils"),
        *("transformers.models.auto", "transformers.models.llama.modeling_llama"),
        *("transformers.models.mamba2.modeling_mamba2", "torch.distributed.checkpoint"),
        *("matplotlib.figure", "matplotlib.backends.backend_svg", "numpy", "tokenizers"),
        *("omegaconf", "pydantic", "jaxtyping", "wrapt", "yaml", "datasets", "psutil"),
        *("mlflow", "mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking.client"),
        *DVC,
    ),
    ORCHESTRATION: (
        *("prefect.flow_engine", "prefect.flow_runs", "prefect.runner.runner", "prefect.cli"),
        *("prefect.cli.worker", "prefect.workers.process", "prefect.task_runners"),
        *("prefect.concurrency.sync", "prefect.server.api.server", "uvicorn", "aiosqlite"),
        *("sqlalchemy.dialects.sqlite.aiosqlite", "httpx", "psutil", "yaml", "rich.progress"),
        *DVC,
    ),
}
SERVER = sys.argv[2]
set_by_imports: dict[str, str] = {}
threads = 0
GIVEN = os.fsdecode(Path("/proc/self/environ").read_bytes()).rstrip("\0").split("\0")
BEFORE = dict(each.split("=", 1) for each in GIVEN)
FOLDERS = set(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


def import_libraries() -> dict[str, str]:
    """Import what is asked for here; return what that has set in the environment."""
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as home:
        # Asked for on import: the one starts threads, the other makes a folder of the user's.
        for name, value in {"MLFLOW_DISABLE_TELEMETRY": "true", "PREFECT_HOME": home}.items():
            if name not in os.environ:
                os.environ[name] = value
                stack.callback(os.environ.pop, name)
        for library in LIBRARIES[SERVER]:
            importlib.import_module(library)
    return {name: os.environ[name] for name in os.environ.keys() - BEFORE.keys()}


def serve() -> dict | None:
    """Fork for each that connects, until standard input ends; a fork returns with what to run."""
    global set_by_imports, threads
    listener = socket.socket(fileno=int(sys.argv[1]))
    folder = Path(listener.getsockname()).parent
    asked, _, _ = select.select([listener, sys.stdin], [], [])
    if listener not in asked:
        return None
    set_by_imports = import_libraries()
    threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else 0
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            shutil.rmtree(folder, ignore_errors=True)  # the other server does so, too
            return None
        client, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return answer(client)
        client.close()


def answer(client: socket.socket) -> dict:
    """Fork once more and watch over the fork, which returns with what to run."""
    head, files, _, _ = socket.recv_fds(client, 8, MOST_FILES)
    size = int.from_bytes(head, "big")
    text = b""
    while len(text) < size:
        text += client.recv(size - len(text))
    request = ast.literal_eval(text.decode())
    environment = set_by_imports | request["environment"]
    if read_on_import(environment) != read_on_import(set_by_imports | BEFORE):
        client.send(b"n")
        os._exit(0)
    process = os.fork()
    if process == 0:
        client.close()
        become(request, files)
        return request
    for file in files:
        os.close(file)
    asking, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    Path("/proc/self/comm").write_text(f"{WATCHING}{asking}")
    with contextlib.suppress(BrokenPipeError):  # a client that is gone is seen by who watches
        client.send(b"y")
    watch(client, process)


def watch(client: socket.socket, process: int) -> NoReturn:
    """Hand on signals, kill the process when the client is gone, and tell how it has ended."""
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(process, process)  # the process does so too; here before it is sent a signal
    end = os.pidfd_open(process)
    while True:
        ready, _, _ = select.select([client, end], [], [])
        if end in ready:
            _, status = os.waitpid(process, 0)
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(BrokenPipeError):
                client.send(code.to_bytes(2, "big", signed=True))
            os._exit(0)
        for number in received(client) or [signal.SIGKILL]:
            # What flows and workers start is in groups of its own, which outlive them.
            os.kill(-process if SERVER == LEARNING else process, number)


def received(client: socket.socket) -> bytes:
    """Return the signals to hand on; nothing where the client is gone."""
    try:
        return client.recv(64)
    except ConnectionResetError:
        return b""


def become(request: dict, files: list[int]) -> None:
    """Take over what another process would have inherited."""
    os.setpgid(0, 0)
    inherit(request["files"], files)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(set_by_imports | request["environment"])
    if request["unbuffered"]:
        sys.stdout.reconfigure(write_through=True)
        sys.stderr.reconfigure(write_through=True)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if "prefect" in sys.modules:
        read_settings_of_prefect(request)
    del sys.modules["client"]
    own = {str(Path(__file__).parent), *FOLDERS}
    added = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    first = [request["folder"]] if request["command"][0] == "-m" else []
    sys.path[:] = [*first, *added, *(each for each in sys.path if each not in own)]
    sys.argv[:] = request["command"][1:]
    sys.executable = request["python"]
    if "torch" in sys.modules:
        sys.modules["numpy"].random.seed()  # the library random does so itself
        sys.modules["torch"].seed()
        sys.modules["torch"].set_num_threads(int(os.environ.get("OMP_NUM_THREADS", threads)))


def inherit(numbers: list[int], files: list[int]) -> None:
    """Open files under the numbers that they had with the client."""
    out_of_the_way = [fcntl.fcntl(file, fcntl.F_DUPFD, MOST_FILES * 2) for file in files]
    for file in files:
        os.close(file)
    for number, file in zip(numbers, out_of_the_way, strict=True):
        os.dup2(file, number)
        os.close(file)


def read_settings_of_prefect(request: dict) -> None:
    """Read them as an import would; where they are wrong, become the one that says so."""
    try:
        sys.modules["prefect.context"].refresh_global_settings_context()
    except Exception:
        os.execv(sys.executable, [sys.executable, *request["command"]])


def run(command: list[str]) -> None:
    """Run what follows the option ``-m`` or ``-P``."""
    kind, what, *_ = command
    if kind == "-m":
        if not hasattr(sys.modules.get(what), "__path__"):
            sys.modules.pop(what, None)  # a module is run as if nobody had imported it
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(what, run_name="__main__")


def end(status: object) -> NoReturn:
    """End as an interpreter does, but for taking apart what was imported: .4 s of a processor.

    A file that nobody has closed loses what was not flushed.
    """
    if not isinstance(status, int | None):
        sys.stderr.write(f"{status}\n")
        status = 1
    try:
        threading._shutdown()  # waits for threads
    except BaseException:
        sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            status = 120
    os._exit((status or 0) & 0xFF)


if request := serve():
    try:
        run(request["command"])
    except SystemExit as ending:
        end(ending.code)
    end(None)
