"""Inside of a job of Slurm: the stage that it runs, and how that gets all of its nodes."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from pipelines.cluster.assignment import Assignment, do_assignment
from pipelines.cluster.local_gpus import TORCHRUN, torchrun_options
from pipelines.cluster.placement import Place
from pipelines.cluster.slurm_commands import ask, has_steps
from pipelines.processes import PATIENCE
from pipelines.running import InfrastructureError, StageFailedError, StoppedError, stop_all

LAUNCHER = "IMPLICIT_MODELS_LAUNCHER"

_FIRST_PORT, _PORTS = 20000, 20000


def run_job(clone: str, content: dict[str, Any]) -> dict[str, Any]:
    """Run a stage inside of a job; what this returns travels back by submitit."""
    assignment = Assignment.from_dict(content)
    place = assignment.place
    is_told = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_told
        if place.nodes == 1:
            stop_all()
        elif not is_told:
            threading.Thread(target=_stop_steps, daemon=True).start()
        is_told = True

    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, stop)
    environment = job_environment(place, os.environ)
    # Slurm has seen to the GPUs.
    assignment = replace(assignment, place=Place(environment=place.environment))
    try:
        result = do_assignment(Path(clone), assignment, _print, environment)
    except StoppedError:
        return {"was_stopped": True}
    except (StageFailedError, InfrastructureError) as error:
        if is_told:
            return {"was_stopped": True}
        return {"error": str(error), "is_stages_own": isinstance(error, StageFailedError)}
    return {"result": result.to_dict()}


def _stop_steps() -> None:
    """End what runs on all nodes of this job, then the rest.

    Past srun: that kills, at once and by SIGKILL, what it has started when it gets SIGTERM.
    """
    job = os.environ["SLURM_JOB_ID"]
    ask("scancel", "--signal=TERM", job)
    deadline = time.monotonic() + PATIENCE
    while has_steps(job) and time.monotonic() < deadline:
        time.sleep(1.0)
    stop_all()


def job_environment(place: Place, slurm: Mapping[str, str]) -> dict[str, str]:
    """Return what makes a stage's training use all nodes and GPUs of a job.

    Parameters
    ----------
    slurm
        The environment of the job, in which Slurm says who it is.
    """
    processes = max(1, place.gpus)
    options = place.torchrun
    if place.nodes == 1:
        if options is None and processes > 1:
            options = torchrun_options(processes)
        return {} if options is None else {TORCHRUN: options}
    job = slurm["SLURM_JOB_ID"]
    head = slurm.get("SLURMD_NODENAME") or os.uname().nodename
    port = _FIRST_PORT + int(job) % _PORTS
    meeting = f"--rdzv-backend=c10d --rdzv-id={job} --rdzv-endpoint={head}:{port}"
    options = options or torchrun_options(processes, f"--nnodes={place.nodes} {meeting}")
    launcher = f"srun --nodes={place.nodes} --ntasks={place.nodes} --ntasks-per-node=1"
    if cores := slurm.get("SLURM_CPUS_PER_TASK"):  # which srun does not take over from the job
        launcher += f" --cpus-per-task={cores}"
    return {TORCHRUN: options, LAUNCHER: f"{launcher} --kill-on-bad-exit=1"}


def _print(line: str) -> None:
    print(line, flush=True)
