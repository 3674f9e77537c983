"""Stages on this machine: what they get in their environment, GPUs among it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipelines.cluster.gpus import held_gpus
from pipelines.cluster.placement import Place
from pipelines.dag import Stage
from pipelines.running import LocalRunner, Log, Outcome

TORCHRUN = "IMPLICIT_MODELS_TORCHRUN"


@dataclass(frozen=True)
class LocalGpuRunner:
    """Runs stages on this machine, each with as many GPUs as its place says.

    Attributes
    ----------
    root
        The repository.
    place
        Where the stage belongs.
    share
        Of the environment, what shares the machine's cores.
    """

    root: Path
    place: Place
    share: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, stage: Stage, log: Log) -> Outcome:
        """Wait for the GPUs, and run it."""
        start = time.monotonic()
        with held_gpus(self.place.gpus, log) as gpus:
            environment = {**self.share, **stage_environment(self.place, gpus.names)}
            outcome = LocalRunner(self.root, environment, gpus.locks)(stage, log)
        return replace(outcome, seconds=time.monotonic() - start)


def stage_environment(place: Place, gpus: tuple[str, ...]) -> dict[str, str]:
    """Return what a stage's environment has on top of that of its machine."""
    environment: dict[str, str] = {}
    if place.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if place.torchrun is not None:
        environment[TORCHRUN] = place.torchrun
    elif place.gpus > 1:
        environment[TORCHRUN] = torchrun_options(place.gpus)
    return environment | dict(place.environment)


def torchrun_options(processes: int, meeting: str = "--standalone") -> str:
    """Return torchrun's options for so many processes on each node.

    Parameters
    ----------
    meeting
        How those of several nodes find each other.
    """
    return f"{meeting} --nproc-per-node={processes}"
