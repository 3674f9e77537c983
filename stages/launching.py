"""Training stages on several processes: the stage starts itself again under torchrun.

How many there are is not part of a result's identity, so it comes from the environment and not
from params.yaml:

    IMPLICIT_MODELS_TORCHRUN='--nproc-per-node=8 --max-restarts=3' dvc repro
"""

import os
import shlex
import sys

TORCHRUN = "IMPLICIT_MODELS_TORCHRUN"  # torchrun's options
_STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_ALLOWED = "allowed are torchrun's options, such as '--standalone --nproc-per-node=8'"


class LaunchError(ValueError):
    """The processes of a training cannot be started."""


def start_processes(stage: str, name: str) -> None:
    """Become ``torchrun OPTIONS -m stages.STAGE NAME`` where options are given.

    Returns where none are, or this is one of the processes that torchrun has started.

    Raises
    ------
    LaunchError
        Where what is given are no options.
    """
    given = os.environ.get(TORCHRUN, "")
    if not given or _STARTED_BY_TORCHRUN in os.environ:
        return
    try:
        options = shlex.split(given)
    except ValueError as error:
        raise LaunchError(f"{TORCHRUN} is {given!r}: {error}; {_ALLOWED}") from None
    if not options[0].startswith("-"):
        raise LaunchError(f"{TORCHRUN} is {given!r}, which begins with no option; {_ALLOWED}")
    command = ["-m", "torch.distributed.run", *options, "-m", f"stages.{stage}", name]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command])
