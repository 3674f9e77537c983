"""Stages as jobs of Slurm, through submitit.

The job does what a worker of Prefect does on a node (`assignment`), in a clone on a disk that this
machine and the nodes share. Slurm gives it nodes and GPUs, and a signal some time before it takes
them away; the training then keeps a checkpoint, and the stage is submitted again.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from pipelines.cluster.assignment import Assignment, Dispatcher, Result
from pipelines.cluster.slurm_commands import ENDED, TAKEN, UNDER_WAY, ask, job_state
from pipelines.cluster.slurm_job import run_job
from pipelines.cluster.submissions import Submission
from pipelines.dag import Stage
from pipelines.processes import PATIENCE
from pipelines.running import (
    InfrastructureError,
    Log,
    Outcome,
    StageFailedError,
    is_overdue,
    pause,
)

_SETTLING_PATIENCE = 30.0
_ANSWER_PATIENCE = 15.0  # until a result is to be seen on a shared disk
_WARNING_SECONDS = 120  # before Slurm takes a job's nodes, and up to two minutes more
_TOLD = "submitit"
_TAIL_LINES = 15

_REFUSED = re.compile("invalid|unrecognized|is not available|violates", re.IGNORECASE)
_FULL = re.compile("MaxSubmit")  # in the names of limits of how many jobs a user may have
_FOLDER = Path(".dvc") / "tmp" / "slurm"  # what jobs print and send


class SlurmRunner(Dispatcher):
    """Runs stages as jobs of Slurm."""

    def __call__(self, stage: Stage, log: Log) -> Outcome:
        """Submit the stage as a job."""
        return self.dispatch(stage, log, lambda assignment: self._run(stage, assignment, log))

    def _run(self, stage: Stage, assignment: Assignment, log: Log) -> Result | None:
        clone = Path(self.pool.clone or self.root).resolve()
        submission = Submission.of(self.root, self.name, self.pool, assignment)
        job = _left_by_another_flow(submission, clone, log)
        if job is None:
            job = self._submitted(stage, assignment, clone, log)
            called = f"job {job.job_id} of Slurm"
            submission.note(job.job_id, called, f"scancel {job.job_id}")
        log(f"{stage.name} is job {job.job_id} of Slurm; it prints into {job.paths.stdout}")
        try:
            answer = self._watched(stage, job, log)
        finally:
            if _is_there(job.paths.result_pickle) or job_state(job.job_id) in ENDED:
                submission.forget()
        if answer.get("was_stopped"):
            return None
        if "error" in answer:
            message = f"stage {stage.name} as a job of Slurm: {answer['error']}"
            raise _fault(answer["is_stages_own"], message)
        return Result.from_dict(answer["result"])

    def _watched(self, stage: Stage, job: submitit.Job[Any], log: Log) -> Mapping[str, Any]:
        told = _Tail(job.paths.stdout, log)
        looked = time.monotonic()
        try:
            while not _is_there(job.paths.result_pickle):
                pause(min(self.pool.heartbeat_seconds, 5.0))
                told()
                if time.monotonic() - looked >= self.pool.heartbeat_seconds:
                    looked = time.monotonic()
                    if job_state(job.job_id) in ENDED:
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
        if answer or state in TAKEN:
            return {"was_stopped": True}
        raise InfrastructureError(
            f"stage {stage.name}: job {job.job_id} of Slurm is {state} and has sent no result; it "
            f"has printed into {job.paths.stderr}\n{said}"
        )

    def _submitted(
        self, stage: Stage, assignment: Assignment, clone: Path, log: Log
    ) -> submitit.Job[Any]:
        """Submit the stage, once Slurm takes one more of the user's jobs."""
        told = False
        while True:
            try:
                return self._submit(stage, assignment, clone)
            except (FailedJobError, FailedSubmissionError) as error:
                if not _FULL.search(str(error)):
                    message = f"Slurm has not taken {stage.name} (pools.{self.name}.slurm): {error}"
                    raise _fault(bool(_REFUSED.search(str(error))), message) from error
            if not told:
                log(f"Slurm takes no more jobs of yours at present: {stage.name} waits for that")
                told = True
            pause(self.pool.heartbeat_seconds)

    def _submit(self, stage: Stage, assignment: Assignment, clone: Path) -> submitit.Job[Any]:
        folder = clone / _FOLDER
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
        except (FailedJobError, FailedSubmissionError):  # of sbatch
            raise
        except RuntimeError as error:
            raise StageFailedError(
                f"pool {self.name}: {error} Slurm's commands (sbatch, scontrol, scancel, srun) are "
                "not on PATH; start the flow on a login node"
            ) from error
        except (TypeError, ValueError) as error:
            raise StageFailedError(
                f"placement.yaml: pools.{self.name}.slurm: {error}; correct it there"
            ) from None
        except (subprocess.CalledProcessError, OSError) as error:
            raise InfrastructureError(f"Slurm has not taken {stage.name}: {error}") from error


def _left_by_another_flow(
    submission: Submission, clone: Path, log: Log
) -> submitit.Job[Any] | None:
    """Return the job of a flow that was killed, if it runs on, or has the stage's result."""
    number = submission.number(log)
    if number is None:
        return None
    job: submitit.Job[Any] = submitit.SlurmJob(folder=clone / _FOLDER, job_id=number)
    if job.paths.result_pickle.exists():
        with contextlib.suppress(FailedJobError):
            return job if "result" in job.result() else None
        return None
    if job_state(number) not in UNDER_WAY:
        return None
    log(f"a flow that was killed has left job {number} of Slurm, which is waited for")
    return job


class _Tail:
    """Hands on what a file has got since the last time; later, where it cannot be read now."""

    def __init__(self, path: Path, log: Log) -> None:
        self._path = path
        self._log = log
        self._position = 0

    def __call__(self) -> None:
        whole = b""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            file.seek(self._position)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._position += len(whole) + 1
            for line in whole.decode(errors="replace").splitlines():
                if not line.startswith(_TOLD):
                    self._log(line)


def _is_there(path: Path) -> bool:
    """Return whether a file is there; not where a shared disk gives an error for a moment."""
    return os.path.exists(path)  # Path.exists raises that error


def _cancel(job: submitit.Job[Any]) -> None:
    """Ask the stage for a checkpoint, wait for that a while, and end the job."""
    if ask("scancel", "--batch", "--signal=USR2", job.job_id).returncode == 0:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not is_overdue():
            if _is_there(job.paths.result_pickle) or job_state(job.job_id) in ENDED:
                break
            time.sleep(1.0)
    ask("scancel", job.job_id)


def _settled_state(job: submitit.Job[Any]) -> str:
    """Return what has become, by Slurm, of a job that has ended, or is just about to."""
    deadline = time.monotonic() + _SETTLING_PATIENCE
    while (state := job_state(job.job_id)) not in ENDED and time.monotonic() < deadline:
        pause(0.5)
    return state or "not to be asked for"


def _has_answered(job: submitit.Job[Any]) -> bool:
    """Wait until what a job has sent is to be seen here: a shared disk may be slow in that."""
    answer = job.paths.result_pickle
    deadline = time.monotonic() + _ANSWER_PATIENCE
    while True:
        with contextlib.suppress(OSError):
            if answer.name in os.listdir(answer.parent):
                return True
        if time.monotonic() > deadline:
            return False
        pause(0.5)


def _last_lines(path: Path) -> str:
    text = path.read_text(errors="replace") if path.exists() else ""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def _fault(is_stages_own: bool, message: str) -> Exception:
    return StageFailedError(message) if is_stages_own else InfrastructureError(message)
