"""The GPUs of this machine, each for one stage at a time.

``IMPLICIT_MODELS_GPUS='0,1'`` names those that stages may have (two workers of one machine get
different ones); where it is not set they are those of ``CUDA_VISIBLE_DEVICES``, or all that the
driver lists. Whoever has one holds a lock on a file, which a process loses when it dies.
"""

import contextlib
import fcntl
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.running import Log, StageFailedError, pause

GPUS = "IMPLICIT_MODELS_GPUS"
NODE = "IMPLICIT_MODELS_NODE"  # this machine's name, where its host name is not it
POD = "IMPLICIT_MODELS_POD"  # set in a pod: its GPUs are those that its one stage asks for

_LOCKS = Path(tempfile.gettempdir()) / "implicit-models-gpus"
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class HeldGpus:
    """GPUs that a stage has.

    Attributes
    ----------
    names
        As ``CUDA_VISIBLE_DEVICES`` names them.
    locks
        File descriptors. A child that inherits them holds the GPUs on until it ends.
    """

    names: tuple[str, ...] = ()
    locks: tuple[int, ...] = ()


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of this machine."""
    return environment.get(NODE) or socket.gethostname()


def offered_gpus(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the GPUs that stages may have, as ``CUDA_VISIBLE_DEVICES`` names them."""
    for variable in (GPUS, "CUDA_VISIBLE_DEVICES"):
        if variable in environment:
            names = (name.strip() for name in environment[variable].split(","))
            return tuple(name for name in names if name)
    try:
        listing = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ()
    lines = listing.stdout.splitlines() if listing.returncode == 0 else []
    return tuple(str(index) for index, line in enumerate(lines) if line.startswith("GPU"))


def check_enough(count: int, environment: Mapping[str, str] = os.environ) -> None:
    """Check that a stage can ever have as many GPUs as it asks for.

    Raises
    ------
    StageFailedError
        Where this machine has fewer.
    """
    offered = offered_gpus(environment)
    if count > len(offered):
        raise StageFailedError(
            f"{count} GPUs are asked for (gpus in placement.yaml), and {node_name(environment)} "
            f"offers {len(offered)}: {', '.join(offered) or 'none'}; ask for fewer, or name those "
            f"that it has in {GPUS}"
        )


@contextlib.contextmanager
def held_gpus(
    count: int, log: Log, environment: Mapping[str, str] = os.environ, folder: Path = _LOCKS
) -> Iterator[HeldGpus]:
    """Wait until as many GPUs are free, and hold them.

    All or none, so that two stages that each need two never hold one each and wait for ever.

    Raises
    ------
    StageFailedError
        Where this machine has fewer.
    """
    check_enough(count, environment)
    told = False
    with contextlib.ExitStack() as stack:
        held = HeldGpus()
        while len(held.names) < count:
            attempt = contextlib.ExitStack()
            held = _take(count, folder, environment, attempt)
            if len(held.names) == count:
                stack.enter_context(attempt)
                break
            attempt.close()
            if not told:
                log(f"waiting for {count} free GPUs of {len(offered_gpus(environment))}")
                told = True
            pause(_LOOK_SECONDS)
        yield held


def _take(
    count: int, folder: Path, environment: Mapping[str, str], stack: contextlib.ExitStack
) -> HeldGpus:
    """Lock up to `count` GPUs that nobody has."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o1777)  # for whoever works on this machine
    taken: dict[str, int] = {}
    for name in offered_gpus(environment):
        if len(taken) == count:
            break
        path = folder / f"{node_name(environment)}-{name.replace('/', '_')}.lock"
        with contextlib.suppress(FileExistsError):  # another user's is opened, not made anew
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o644))
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        stack.callback(os.close, descriptor)
        taken[name] = descriptor
    return HeldGpus(tuple(taken), tuple(taken.values()))
