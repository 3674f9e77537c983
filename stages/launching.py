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


def start_processes(stage: str, name: str) -> None:
    """Become ``torchrun OPTIONS -m stages.STAGE NAME`` where options are given.

    Returns where none are, or this is one of the processes that torchrun has started.
    """
    options = shlex.split(os.environ.get(TORCHRUN, ""))
    if not options or _STARTED_BY_TORCHRUN in os.environ:
        return
    command = ["-m", "torch.distributed.run", *options, "-m", f"stages.{stage}", name]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *command])
