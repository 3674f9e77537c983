"""Stages as jobs of Slurm, through submitit.

The job does what a worker of Prefect does on a node (`node_work`), in a clone on a disk that this
machine and the nodes share. Slurm gives it nodes and GPUs, and a signal some time before it takes
them away; the training then keeps a checkpoint, and the stage is submitted again.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from pipelines.cluster.local_gpus import TORCHRUN
from pipelines.cluster.node_work import Assignment, Dispatcher, Result, do_assignment
from pipelines.cluster.placement import Place
from pipelines.dag import Stage
from pipelines.running import (
    InfrastructureError,
    Log,
    Outcome,
    StageFailedError,
    StoppedError,
    pause,
    stop_all,
)

LAUNCHER = "IMPLICIT_MODELS_LAUNCHER"

_FIRST_PORT, _PORTS = 20000, 20000
_SETTLING_PATIENCE = 30.0
_ANSWER_PATIENCE = 15.0  # until a result is to be seen on a shared disk
_WARNING_SECONDS = 120  # before Slurm takes a job's nodes
_TOLD = "submitit"
_TAIL_LINES = 15

_GONE = "UNKNOWN"
_TAKEN = ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "TIMEOUT")
_ENDED = (
    *_TAKEN,
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "OUT_OF_MEMORY",
    "REVOKED",
    _GONE,
)


class SlurmRunner(Dispatcher):
    """Runs stages as jobs of Slurm."""

    def __call__(self, stage: Stage, log: Log) -> Outcome:
        """Submit the stage, as often as Slurm takes its nodes away."""
        return self.dispatch(stage, lambda assignment: self._run(stage, assignment, log))

    def _run(self, stage: Stage, assignment: Assignment, log: Log) -> Result:
        for attempt in range(self.pool.max_requeues + 1):
            if attempt:
                log(f"{stage.name} lost its nodes; it is submitted again and goes on from there")
            answer = self._run_job(stage, assignment, log)
            if "result" in answer:
                return Result.from_dict(answer["result"])
            if not answer.get("was_stopped"):
                message = f"stage {stage.name} as a job of Slurm: {answer['error']}"
                raise _fault(answer["is_stages_own"], message)
        raise InfrastructureError(
            f"stage {stage.name}: Slurm took its nodes away {self.pool.max_requeues + 1} times; "
            "the same command goes on from the last checkpoint, and placement.yaml gives more "
            f"(pools.{self.name}.slurm.time, pools.{self.name}.max_requeues)"
        )

    def _run_job(self, stage: Stage, assignment: Assignment, log: Log) -> Mapping[str, Any]:
        clone = Path(self.pool.clone or self.root).resolve()
        job = self._submit(stage, assignment, clone)
        log(f"{stage.name} is job {job.job_id} of Slurm; it prints into {job.paths.stdout}")
        told = _Tail(job.paths.stdout, log)
        looked = time.monotonic()
        try:
            while not job.paths.result_pickle.exists():
                pause(min(self.pool.heartbeat_seconds, 5.0))
                told()
                if time.monotonic() - looked >= self.pool.heartbeat_seconds:
                    looked = time.monotonic()
                    if _state(job.job_id) in _ENDED:
                        break
        except BaseException:
            _cancel(job)
            raise
        is_answered = _is_answered(job)
        told()
        state = _settled_state(job.job_id) if not is_answered else ""
        error = f"it has printed into {job.paths.stderr}{_last_lines(job.paths.stderr)}"
        if is_answered:
            try:
                answer = job.result()
            except FailedJobError as failure:
                ...
    def _submit(self, stage: Stage, assignment: Assignment, clone: Path) -> submitit.Job[Any]:
        folder = clone / ".dvc" / "tmp" / "slurm"
        options = dict(self.pool.slurm)
        # submitit is not told of further nodes: it would wait for a result of each.
        more: dict[str, Any] = {"chdir": str(clone), "nodes": self.place.nodes}
        more["signal"] = f"B:USR2@{_WARNING_SECONDS}"
        more |= options.pop("additional_parameters", {})
        if self.place.gpus:
            options["gpus_per_node"] = self.place.gpus
        try:
            # exec: the batch shell gives way to Python, which thereby gets Slurm's signals. Other
            # nodes come in where the stage starts torchrun, by srun.
            executor = submitit.SlurmExecutor(folder, python=f"exec {shlex.quote(sys.executable)}")
            executor.update_parameters(
                job_name=stage.name,
                ntasks_per_node=1,
                use_srun=False,
                additional_parameters=more,
                **options,
            )
            return executor.submit(run_job, str(clone), assignment.to_dict())
        except RuntimeError as error:
            if isinstance(error, FailedSubmissionError):
                raise InfrastructureError(f"Slurm has not taken {stage.name}: {error}") from error
            raise StageFailedError(
                f"pool {self.name}: {error} Slurm's commands (sbatch, srun, sacct, scancel) are "
                "not on PATH; start the flow on a login node"
            ) from error
        except (TypeError, ValueError) as error:
            raise StageFailedError(f"placement.yaml: pools.{self.name}.slurm: {error}") from None
        except (subprocess.CalledProcessError, OSError) as error:
            raise InfrastructureError(f"Slurm has not taken {stage.name}: {error}") from error


def run_job(clone: str, content: dict[str, Any]) -> dict[str, Any]:
    """Run a stage inside of a job; what this returns travels back by submitit."""

    def stop(number: int, frame: FrameType | None) -> None:
        stop_all()

    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, stop)
    assignment = Assignment.from_dict(content)
    place = assignment.place
    environment = job_environment(place, os.environ)
    # Slurm has seen to the GPUs.
    assignment = replace(assignment, place=Place(environment=place.environment))
    try:
        result = do_assignment(Path(clone), assignment, _print, environment)
    except StoppedError:
        return {"was_stopped": True}
    except (StageFailedError, InfrastructureError) as error:
        return {"error": str(error), "is_stages_own": isinstance(error, StageFailedError)}
    return {"result": result.to_dict()}


def job_environment(place: Place, slurm: Mapping[str, str]) -> dict[str, str]:
    """Give what has a stage's training use all nodes and GPUs of a job.

    Parameters
    ----------
    slurm
        The environment of the job, in which Slurm says who it is.
    """
    processes = max(1, place.gpus)
    options = place.torchrun
    if place.nodes == 1:
        if options is None and processes > 1:
            options = f"--standalone --nproc-per-node={processes}"
        return {} if options is None else {TORCHRUN: options}
    job = slurm["SLURM_JOB_ID"]
    head = slurm.get("SLURMD_NODENAME") or os.uname().nodename
    port = _FIRST_PORT + int(job) % _PORTS
    meeting = f"--rdzv-backend=c10d --rdzv-id={job} --rdzv-endpoint={head}:{port}"
    options = options or f"--nnodes={place.nodes} --nproc-per-node={processes} {meeting}"
    launcher = f"srun --nodes={place.nodes} --ntasks={place.nodes} --ntasks-per-node=1"
    return {TORCHRUN: options, LAUNCHER: f"{launcher} --kill-on-bad-exit=1"}


class _Tail:
    """Hands on what a file has got since the last time."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._log = log
        self._position = 0

    def __call__(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._position += len(whole) + 1
            for line in whole.decode(errors="replace").splitlines():
                if not line.startswith(_TOLD):
                    self._log(line)


def _cancel(job: submitit.Job[Any]) -> None:
    """Have the stage keep a checkpoint, wait for that a while, and end the job."""
    asked = ["scancel", "--batch", "--signal=USR2", job.job_id]
    if subprocess.run(asked, capture_output=True).returncode == 0:
        deadline = time.monotonic() + _CANCELLING_PATIENCE
        while time.monotonic() < deadline and not job.paths.result_pickle.exists():
            time.sleep(0.5)
    job.cancel(check=False)


def _settled_state(job: submitit.Job[Any]) -> str:
    """Ask Slurm what has become of a job whose result is there already."""
    deadline = time.monotonic() + _SETTLING_PATIENCE
    while True:
        state = job.watcher.get_state(job.job_id, mode="force")
        if state not in ("RUNNING", "COMPLETING", "UNKNOWN") or time.monotonic() > deadline:
            return state
        pause(0.5)


def _cancelled(stage: Stage, job: submitit.Job[Any]) -> str:
    return (
        f"stage {stage.name}: its job {job.job_id} was ended by scancel; the same command goes on "
        "from the last checkpoint"
    )


def _fault(is_stages_own: bool, message: str) -> Exception:
    return StageFailedError(message) if is_stages_own else InfrastructureError(message)


def _print(line: str) -> None:
    print(line, flush=True)
