"""The `python` that hands over: nothing but the standard library's smallest modules."""

import os
import signal
import socket
import sys

LEARNING, ORCHESTRATION = "learning", "orchestration"  # servers, which are sockets in one folder
WARM = {
    LEARNING: (
        *("stages.", "implicit_models.", "benchmarks.", "torch.distributed.run"),
        *("tests.training.", "tests.crash", "tests.fuzz"),
        *("mlflow", "uvicorn"),  # MLflow's server
    ),
    ORCHESTRATION: (
        *("prefect", "pipelines.reproduce", "pipelines.sweep", "pipelines.cluster.pod"),
        "tests.pipelines.",
    ),
}
MOST_FILES = 64
WATCHING = "of "  # name of who watches over a fork, with the number of its client
PREFECTS_SERVER = "/pipelines/server/api_server.py"  # the one that is run by its path
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Read by libraries when they are imported.
READ_ON_IMPORT = (
    "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TORCH", "PYTORCH_", "TRITON_", "MKL_", "KMP_", "CUDA_",
    "MPL", "MLFLOW_TRACING_", "HOME", "XDG_",
    "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONSAFEPATH", "LD_",
)  # fmt: skip


def read_on_import(environment) -> dict:
    """Return what of an environment has been read when the libraries are there."""
    # torchrun's, for its processes; what is read when a GPU is first used; and what torch's
    # compiler sets in the process of tests, after which all would start cold
    left_out = ("TORCHELASTIC_", "TORCH_NCCL_", "CUDA_VISIBLE_DEVICES", "KMP_DUPLICATE_LIB_OK")
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_ON_IMPORT) and not name.startswith(left_out)
    }


def main(python: str, folder: str, *given: str) -> None:
    """Ask the server to run this process's module, or become the real Python.

    ``given`` comes before its arguments: what makes a command, which is warm, of a module.
    """
    arguments = [*given, *sys.argv[1:]]
    unbuffered = arguments[:1] == ["-u"]
    command = arguments[unbuffered:]
    name = LEARNING if given else _server_for(command)
    if name is None:
        os.execv(python, [python, *arguments])
    ignored = [int(each) for each in FORWARDED if signal.getsignal(each) is signal.SIG_IGN]
    files = _inherited()
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(os.path.join(folder, name))
        except OSError:
            os.execv(python, [python, *arguments])
        request = repr(
            {
                "python": os.path.join(folder, "python"),
                "command": command,
                "unbuffered": unbuffered or bool(os.environ.get("PYTHONUNBUFFERED")),
                "folder": os.getcwd(),
                "umask": _umask(),
                "environment": dict(os.environ),
                "ignored": ignored,
                "files": files,
            }
        ).encode()
        socket.send_fds(server, [len(request).to_bytes(8, "big")], files)
        server.sendall(request)
        if server.recv(1) != b"y":
            os.execv(python, [python, *arguments])

        def forward(number, _):
            server.send(bytes([number]))

        for each in set(FORWARDED) - set(ignored):
            signal.signal(each, forward)
        told = server.recv(2)
    # Who tells it may have been killed together with the fork.
    status = int.from_bytes(told, "big", signed=True) if told else -signal.SIGKILL
    if status < 0:
        if -status in FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _server_for(command) -> str | None:
    """Return the server that has what ``-m MODULE`` or ``-P FILE`` imports."""
    kind, what, *_ = (*command, "", "")
    if kind == "-P" and what.endswith(PREFECTS_SERVER):
        return ORCHESTRATION
    found = (name for name, modules in WARM.items() if what.startswith(modules))
    return next(found, None) if kind == "-m" else None


def _inherited() -> list[int]:
    """Return the open files that this process was given: standard streams, sockets, locks."""
    files = []
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            if number < 3 or os.get_inheritable(number):
                files.append(number)
        except OSError:  # the listing itself
            continue
    return files


def _umask() -> int:
    now = os.umask(0o22)
    os.umask(now)
    return now
