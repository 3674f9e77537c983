"""Stages as jobs of Slurm, through submitit.

The job does what a worker of Prefect does on a node (`assignment`), in a clone on a disk that this
machine and the nodes share. Slurm gives it nodes and GPUs, and a signal some time before it takes
them away; the training then keeps a checkpoint, and the stage is submitted again.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from pipelines.cluster.assignment import Assignment, Dispatcher, Result, do_assignment
from pipelines.cluster.local_gpus import TORCHRUN
from pipelines.cluster.placement import Place
from pipelines.dag import Stage
from pipelines.processes import PATIENCE
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
_WARNING_SECONDS = 120  # before Slurm takes a job's nodes, and up to two minutes more
_TOLD = "submitit"
_TAIL_LINES = 15

_FORGOTTEN = "FORGOTTEN"  # no state of Slurm: it does not know the job any more
_TAKEN = {"BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "TIMEOUT"}
_FAILED = {"CANCELLED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "REVOKED"}
_ENDED = {"COMPLETED", _FORGOTTEN} | _TAKEN | _FAILED
_REFUSED = re.compile("invalid|unrecognized|is not available", re.IGNORECASE)


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
        answer = self._answer(stage, job)
        told()
        return answer

    def _answer(self, stage: Stage, job: submitit.Job[Any]) -> Mapping[str, Any]:
        """Return what a job has sent; where that is nothing, Slurm says what has become of it."""
        try:
            answer = job.result() if _has_answered(job) else {}
            said = _last_lines(job.paths.stderr)
        except FailedJobError as error:
            answer, said = {}, str(error)
        if answer and not answer.get("was_stopped"):
            return answer
        state = _settled_state(job)
        if state == "CANCELLED":
            raise StageFailedError(
                f"stage {stage.name}: its job {job.job_id} was ended by scancel; the same command "
                "goes on from the last checkpoint"
            )
        if answer or state in _TAKEN:
            return {"was_stopped": True}
        raise InfrastructureError(
            f"stage {stage.name}: job {job.job_id} of Slurm is {state} and has sent no result; it "
            f"has printed into {job.paths.stderr}\n{said}"
        )

    def _submit(self, stage: Stage, assignment: Assignment, clone: Path) -> submitit.Job[Any]:
        folder = clone / ".dvc" / "tmp" / "slurm"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)  # submitit's pickles, which the job unpacks, are nobody else's
        options = dict(self.pool.slurm)
        # submitit is not told of further nodes: it would wait for a result of each.
        more: dict[str, Any] = {"chdir": str(clone), "nodes": self.place.nodes}
        more["signal"] = f"B:USR2@{_WARNING_SECONDS}"
        more["no-requeue"] = True  # by Slurm: it would run beside the one submitted here
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
            if isinstance(error, FailedJobError | FailedSubmissionError):  # of sbatch
                message = f"Slurm has not taken {stage.name} (pools.{self.name}.slurm): {error}"
                raise _fault(bool(_REFUSED.search(str(error))), message) from error
            raise StageFailedError(
                f"pool {self.name}: {error} Slurm's commands (sbatch, scontrol, scancel, srun) are "
                "not on PATH; start the flow on a login node"
            ) from error
        except (TypeError, ValueError) as error:
            raise StageFailedError(f"placement.yaml: pools.{self.name}.slurm: {error}") from None
        except (subprocess.CalledProcessError, OSError) as error:
            raise InfrastructureError(f"Slurm has not taken {stage.name}: {error}") from error


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
    _ask("scancel", "--signal=TERM", job)
    deadline = time.monotonic() + PATIENCE
    while _has_steps(job) and time.monotonic() < deadline:
        time.sleep(1.0)
    stop_all()


def _has_steps(job: str) -> bool:
    steps = _ask("squeue", "--steps", "--noheader", "--format=%i", f"--jobs={job}").stdout
    return re.search(rf"^\s*{job}\.\d", steps, re.MULTILINE) is not None  # and not JOB.batch


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
    """Ask the stage for a checkpoint, wait for that a while, and end the job."""
    if _ask("scancel", "--batch", "--signal=USR2", job.job_id).returncode == 0:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not job.paths.result_pickle.exists():
            if _state(job.job_id) in _ENDED:
                break
            time.sleep(1.0)
    _ask("scancel", job.job_id)


def _state(number: str) -> str:
    """Return a job's state, from Slurm; empty where it does not answer.

    Who runs the job knows it some minutes beyond its end. The accounting, which not every Slurm
    has, knows it afterwards.
    """
    shown = _ask("scontrol", "show", "job", "--oneliner", number)
    if found := re.search(r"\bJobState=([A-Z_]+)", shown.stdout):
        return found[1]
    counted = _ask("sacct", "--noheader", "--parsable2", "-X", "--format=State", f"--jobs={number}")
    if found := re.match(r"[A-Z_]+", counted.stdout):
        return found[0]
    return _FORGOTTEN if "Invalid job id" in shown.stderr else ""


def _settled_state(job: submitit.Job[Any]) -> str:
    """Return what has become, by Slurm, of a job that has ended, or is just about to."""
    deadline = time.monotonic() + _SETTLING_PATIENCE
    while (state := _state(job.job_id)) not in _ENDED and time.monotonic() < deadline:
        pause(0.5)
    return state or "not to be asked for"


def _has_answered(job: submitit.Job[Any]) -> bool:
    """Wait until what a job has sent is to be seen here: a shared disk may be slow in that."""
    answer = job.paths.result_pickle
    deadline = time.monotonic() + _ANSWER_PATIENCE
    while answer.name not in os.listdir(answer.parent):
        if time.monotonic() > deadline:
            return False
        pause(0.5)
    return True


def _last_lines(path: Path) -> str:
    text = path.read_text(errors="replace") if path.exists() else ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def _fault(is_stages_own: bool, message: str) -> Exception:
    return StageFailedError(message) if is_stages_own else InfrastructureError(message)


def _print(line: str) -> None:
    print(line, flush=True)
