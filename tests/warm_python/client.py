"""The `python` that hands over: nothing but the standard library's smallest modules."""

import os
import signal
import socket
import sys

WARM = (
    *("stages.", "implicit_models.", "benchmarks.", "torch.distributed.run"),
    *("tests.training.", "tests.crash", "tests.fuzz"),
    *("mlflow", "uvicorn"),  # MLflow's server
)
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# Read by libraries when they are imported.
READ_ON_IMPORT = (
    "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TORCH", "PYTORCH_", "TRITON_", "MKL_", "KMP_", "CUDA_",
    "MPL", "MLFLOW_TRACING_", "HOME", "XDG_",
    "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONSAFEPATH", "LD_",
)  # fmt: skip


def read_on_import(environment) -> dict:
    """Return what of an environment has been read when the libraries are there."""
    # torchrun's, for its processes; and what is read when a GPU is first used
    left_out = ("TORCHELASTIC_", "TORCH_NCCL_", "CUDA_VISIBLE_DEVICES")
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_ON_IMPORT) and not name.startswith(left_out)
    }


def main(python: str, address: str, *given: str) -> None:
    """Ask the server to run this process's module, or become the real Python.

    ``given`` comes before its arguments: what makes a command, which is warm, of a module.
    """
    arguments = [*given, *sys.argv[1:]]
    unbuffered = arguments[:1] == ["-u"]
    module = arguments[unbuffered:]
    is_module = len(module) > 1 and module[0] == "-m"
    if not is_module or not (given or module[1].startswith(WARM)):
        os.execv(python, [python, *arguments])
    ignored = [int(each) for each in FORWARDED if signal.getsignal(each) is signal.SIG_IGN]
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(address)
        except OSError:
            os.execv(python, [python, *arguments])
        request = repr(
            {
                "python": os.path.join(os.path.dirname(address), "python"),
                "module": module[1],
                "arguments": module[2:],
                "unbuffered": unbuffered or bool(os.environ.get("PYTHONUNBUFFERED")),
                "folder": os.getcwd(),
                "umask": _umask(),
                "environment": dict(os.environ),
                "ignored": ignored,
            }
        ).encode()
        socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(request)
        if server.recv(1) != b"y":
            os.execv(python, [python, *arguments])

        def forward(number, _):
            server.send(bytes([number]))

        for each in set(FORWARDED) - set(ignored):
            signal.signal(each, forward)
        status = int.from_bytes(server.recv(2), "big", signed=True)
    if status < 0:
        if -status in FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _umask() -> int:
    now = os.umask(0o22)
    os.umask(now)
    return now
