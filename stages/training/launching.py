"""Training stages on several processes: the stage starts itself again under torchrun.

How many there are is not part of a result's identity, so it comes from the environment and not
from params.yaml:

    IMPLICIT_MODELS_TORCHRUN='--nproc-per-node=8 --max-restarts=3' dvc repro

Several nodes each need torchrun; what starts it on all of them is put in front of it:

    IMPLICIT_MODELS_LAUNCHER='srun --nodes=2 --ntasks-per-node=1'
"""

import os
import shlex
import shutil
import sys

TORCHRUN = "IMPLICIT_MODELS_TORCHRUN"  # torchrun's options
LAUNCHER = "IMPLICIT_MODELS_LAUNCHER"  # a command that starts torchrun, on every node
_STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_ALLOWED = "allowed are torchrun's options, such as '--standalone --nproc-per-node=8'"
_ALLOWED_LAUNCHER = "allowed is a command, such as 'srun --nodes=2 --ntasks-per-node=1'"


class LaunchError(ValueError):
    """The processes of a training cannot be started."""


def start_processes(stage: str, name: str) -> None:
    """Become ``LAUNCHER torchrun OPTIONS -m stages.training.STAGE NAME`` where options are given.

    Returns where none are, or this is one of the processes that torchrun has started.

    Raises
    ------
    LaunchError
        Where what is given are no options, or a launcher that is not there.
    """
    given = os.environ.get(TORCHRUN, "")
    if not given or _STARTED_BY_TORCHRUN in os.environ:
        return
    options = _words(TORCHRUN, _ALLOWED)
    if not options or not options[0].startswith("-"):
        raise LaunchError(
            f"{TORCHRUN} is {given!r}, which does not begin with an option; {_ALLOWED}"
        )
    launcher = _words(LAUNCHER, _ALLOWED_LAUNCHER)
    if launcher and shutil.which(launcher[0]) is None:
        raise LaunchError(f"{LAUNCHER}: {launcher[0]} is not on PATH; {_ALLOWED_LAUNCHER}")
    torchrun = [sys.executable, "-m", "torch.distributed.run", *options]
    command = [*launcher, *torchrun, "-m", f"{__package__}.{stage}", name]
    sys.stdout.flush()
    os.execvp(command[0], command)


def _words(variable: str, allowed: str) -> list[str]:
    given = os.environ.get(variable, "")
    try:
        return shlex.split(given)
    except ValueError as error:
        raise LaunchError(f"{variable} is {given!r}: {error}; {allowed}") from None
