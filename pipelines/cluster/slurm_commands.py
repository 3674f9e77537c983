"""What Slurm's own commands say of jobs."""

import re
import subprocess

FORGOTTEN = "FORGOTTEN"  # no state of Slurm: it does not know the job any more
TAKEN = {"BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "TIMEOUT"}
_FAILED = {"CANCELLED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "REVOKED"}
ENDED = {"COMPLETED", FORGOTTEN} | TAKEN | _FAILED
UNDER_WAY = {"CONFIGURING", "PENDING", "RUNNING", "SUSPENDED"}


def job_state(number: str) -> str:
    """Return a job's state, from Slurm; empty where it does not answer.

    Who runs the job knows it some minutes beyond its end. The accounting, which not every Slurm
    has, knows it afterwards.
    """
    shown = ask("scontrol", "show", "job", "--oneliner", number)
    if found := re.search(r"\bJobState=([A-Z_]+)", shown.stdout):
        return found[1]
    counted = ask("sacct", "--noheader", "--parsable2", "-X", "--format=State", f"--jobs={number}")
    if found := re.match(r"[A-Z_]+", counted.stdout):
        return found[0]
    return FORGOTTEN if "Invalid job id" in shown.stderr else ""


def has_steps(job: str) -> bool:
    """Return whether srun has started something in a job that still runs."""
    steps = ask("squeue", "--steps", "--noheader", "--format=%i", f"--jobs={job}").stdout
    return re.search(rf"^\s*{job}\.\d", steps, re.MULTILINE) is not None  # and not JOB.batch


def ask(*command: str) -> subprocess.CompletedProcess[str]:
    """Run one of the commands; one that cannot be started has failed with status 127."""
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:  # it is not there, or this machine has no process left for a moment
        return subprocess.CompletedProcess(command, 127, "", str(error))
