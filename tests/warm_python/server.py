"""The process that has imported the libraries, and forks."""

import ast
import contextlib
import gc
import importlib
import os
import runpy
import select
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import numpy
import torch
from client import read_on_import  # beside this script

# What stages, the courier and DVC import; never modules of a clone, which may be other ones there.
LIBRARIES = (
    *("transformers.modeling_utils", "transformers.generation.utils", "transformers.models.auto"),
    *("transformers.models.llama.modeling_llama", "transformers.models.mamba2.modeling_mamba2"),
    *("torch.distributed.checkpoint", "matplotlib.figure", "matplotlib.backends.backend_svg"),
    *("omegaconf", "pydantic", "jaxtyping", "wrapt", "yaml", "tokenizers", "datasets", "psutil"),
    *("mlflow", "mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking.client"),
    *("dvc.cli.parser", "dvc.repo", "dvc.repo.reproduce", "dvc.repo.experiments", "dvc.stage.run"),
    *("dvc.api", "dvc_data.index", "dvc_objects.fs.local", "hydra.compose", "scmrepo.git"),
)
GIVEN = os.fsdecode(Path("/proc/self/environ").read_bytes()).rstrip("\0").split("\0")
BEFORE = dict(each.split("=", 1) for each in GIVEN)
with contextlib.ExitStack() as stack:
    if "MLFLOW_DISABLE_TELEMETRY" not in os.environ:  # asked for on import; it starts threads
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        stack.callback(os.environ.pop, "MLFLOW_DISABLE_TELEMETRY")
    for library in LIBRARIES:
        importlib.import_module(library)
SET_BY_IMPORTS = {name: os.environ[name] for name in os.environ.keys() - BEFORE.keys()}
THREADS = torch.get_num_threads()
FOLDERS = set(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


def serve() -> dict | None:
    """Fork for each that connects, until standard input ends; a fork returns with what to run."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    folder = Path(listener.getsockname()).parent
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            shutil.rmtree(folder)
            return None
        client, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return answer(client)
        client.close()


def answer(client: socket.socket) -> dict:
    """Fork once more and watch over the fork, which returns with what to run."""
    head, streams, _, _ = socket.recv_fds(client, 8, 3)
    size = int.from_bytes(head, "big")
    text = b""
    while len(text) < size:
        text += client.recv(size - len(text))
    request = ast.literal_eval(text.decode())
    environment = SET_BY_IMPORTS | request["environment"]
    if read_on_import(environment) != read_on_import(SET_BY_IMPORTS | BEFORE):
        client.send(b"n")
        os._exit(0)
    process = os.fork()
    if process == 0:
        client.close()
        become(request, streams)
        return request
    for stream in streams:
        os.close(stream)
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
            os.killpg(process, number)


def received(client: socket.socket) -> bytes:
    """Return the signals to hand on; nothing where the client is gone."""
    try:
        return client.recv(64)
    except ConnectionResetError:
        return b""


def become(request: dict, streams: list[int]) -> None:
    """Take over what another process would have inherited."""
    os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(SET_BY_IMPORTS | request["environment"])
    if request["unbuffered"]:
        sys.stdout.reconfigure(write_through=True)
        sys.stderr.reconfigure(write_through=True)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    del sys.modules["client"]
    own = {str(Path(__file__).parent), *FOLDERS}
    added = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [request["folder"], *added, *(each for each in sys.path if each not in own)]
    sys.argv[1:] = request["arguments"]
    sys.executable = request["python"]
    numpy.random.seed()  # the library random does so itself
    torch.seed()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", THREADS)))


if request := serve():
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
