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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from pipelines.running import InfrastructureError, Log, StageFailedError, pause

GPUS = "IMPLICIT_MODELS_GPUS"
NODE = "IMPLICIT_MODELS_NODE"  # this machine's name, where its host name is not it
POD = "IMPLICIT_MODELS_POD"  # set in a pod: its GPUs are those that its one stage asks for

_LOCKS = Path(tempfile.gettempdir()) / "implicit-models-gpus"
_LOOK_SECONDS = 0.5
_LISTING_SECONDS = 60.0


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
    """Return the GPUs that stages may have, as ``CUDA_VISIBLE_DEVICES`` names them.

    Raises
    ------
    InfrastructureError
        Where the driver has to be asked, and does not answer.
    """
    for variable in (GPUS, "CUDA_VISIBLE_DEVICES"):
        if variable in environment:
            names = (name.strip() for name in environment[variable].split(","))
            # As CUDA reads them: -1 is none, and hides those behind it.
            return tuple(name for name in takewhile(lambda name: name != "-1", names) if name)
    lines = _listing(environment).splitlines()
    return tuple(str(index) for index, line in enumerate(lines) if line.startswith("GPU"))


def _listing(environment: Mapping[str, str]) -> str:
    """Return what the driver lists; nothing on a machine that has none."""
    command = ["nvidia-smi", "--list-gpus"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_LISTING_SECONDS
        )
        if done.returncode == 0:
            return done.stdout
        said = " ".join(f"{done.stdout} {done.stderr}".split())
        problem = f"has failed with exit status {done.returncode}: {said or 'it says nothing'}"
    except FileNotFoundError:
        return ""
    except subprocess.TimeoutExpired:
        problem = f"has not answered for {_LISTING_SECONDS:.0f} s"
    except OSError as error:
        problem = f"cannot be started: {error}"
    raise InfrastructureError(
        f"which GPUs {node_name(environment)} has is not known: {' '.join(command)} {problem}; "
        f"mend its driver, or name them in {GPUS}"
    )


def _check_enough(count: int, offered: Sequence[str], environment: Mapping[str, str]) -> None:
    """Check that a stage can ever have as many GPUs as it asks for."""
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
        Where this machine has fewer, or too few whose locks this user may read.
    InfrastructureError
        Where its driver does not say what it has.
    """
    if count == 0:
        yield HeldGpus()
        return
    offered = offered_gpus(environment)
    _check_enough(count, offered, environment)
    told = False
    with contextlib.ExitStack() as stack:
        held = HeldGpus()
        while len(held.names) < count:
            attempt = contextlib.ExitStack()
            held = _take(count, offered, folder, environment, attempt)
            if len(held.names) == count:
                stack.enter_context(attempt)
                break
            attempt.close()
            if not told:
                log(f"waiting for {count} free GPUs of {len(offered)}")
                told = True
            pause(_LOOK_SECONDS)
        yield held


def _take(
    count: int,
    offered: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    stack: contextlib.ExitStack,
) -> HeldGpus:
    """Lock up to `count` GPUs that nobody has, and whose locks this user may read."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o1777)  # for whoever works on this machine
    taken: dict[str, int] = {}
    refused: list[PermissionError] = []
    for name in offered:
        if len(taken) == count:
            break
        path = folder / f"{node_name(environment)}-{name.replace('/', '_')}.lock"
        try:
            descriptor = _opened(path)
        except PermissionError as error:
            refused.append(error)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        stack.callback(os.close, descriptor)
        taken[name] = descriptor
    if len(taken) < count and count > len(offered) - len(refused):
        raise StageFailedError(
            f"{refused[0].filename}: {refused[0].strerror}: by this file users of "
            f"{node_name(environment)} share a GPU; have its owner remove it while no stage runs "
            f"there, or name in {GPUS} the GPUs that are yours"
        )
    return HeldGpus(tuple(taken), tuple(taken.values()))


def _opened(path: Path) -> int:
    """Open the file of a lock, made where missing, so that every user may read it."""
    try:
        made = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:  # another user's is opened, not made anew
        return os.open(path, os.O_RDONLY)
    os.fchmod(made, 0o644)  # whatever the umask is
    return made
