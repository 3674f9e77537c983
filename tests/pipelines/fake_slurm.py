"""Slurm's commands as far as they are used: jobs are processes of this machine.

Its folder is ``FAKE_SLURM``; a job is a file there, JOB.json, with its process and its state. The
first job's number is ``FAKE_SLURM_FIRST``: submitit remembers what has become of a number. Slurm's
accounting is off, as it often is, unless ``FAKE_SLURM_ACCOUNTING`` is set: then sacct alone knows
the jobs that have ended. While there is a file ``full`` the user has as many jobs as are allowed;
who asks takes it away. What it says and does was seen of Slurm 22.05.8.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

FOLDER = Path(os.environ.get("FAKE_SLURM", "."))
COMMANDS = ("sbatch", "scontrol", "squeue", "sacct", "scancel", "srun")
PARTITIONS = ("short",)


def install(folder: Path) -> None:
    """Put the commands into a folder for PATH."""
    folder.mkdir()
    for name in COMMANDS:
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        script.chmod(0o755)


def sbatch(script: str) -> None:
    """Start a job's script in the background."""
    number = str(int(os.environ["FAKE_SLURM_FIRST"]) + len(list(FOLDER.glob("*.json"))))
    options = dict(
        re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", Path(script).read_text(), re.MULTILINE)
    )
    if options.get("partition", PARTITIONS[0]) not in PARTITIONS:
        sys.exit("sbatch: error: Batch job submission failed: Invalid partition name specified")
    full = FOLDER / "full"
    if full.exists():
        full.unlink()
        sys.exit(
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission "
            "failed: Job violates accounting/QOS policy (job submit limit, user's size and/or "
            "time limits)"
        )
    nodes = int(options.get("nodes", 1))
    environment = {
        **os.environ,
        "SLURM_JOB_ID": number,
        "SLURM_NTASKS": str(nodes * int(options.get("ntasks-per-node", 1))),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": "localhost",
    }
    if not os.fork():
        step(number, script, options, environment)
        os._exit(0)
    while not (FOLDER / f"{number}.json").exists():
        time.sleep(0.01)
    sys.stdout.write(f"Submitted batch job {number}\n")


def step(number: str, script: str, options: dict, environment: dict) -> None:
    """Be a job's slurmstepd, a process beside sbatch: start the script, and see how it ends."""
    os.setsid()
    output = options["output"].strip("'").replace("%j", number)
    error = options.get("error", output).strip("'").replace("%j", number)
    with open(output, "ab") as out, open(error, "ab") as err, open(os.devnull, "r+b") as null:
        for descriptor in range(3):
            os.dup2(null.fileno(), descriptor)
        job = subprocess.Popen(
            ["bash", script],
            cwd=options.get("chdir", ".").strip("'"),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    write(number, {"pid": job.pid, "state": "RUNNING", "options": options})
    code = job.wait()
    ended = read(number)
    if ended is not None and ended["state"] == "RUNNING":
        change(ended, number, "FAILED" if code else "COMPLETED")


def scontrol(*arguments: str) -> None:
    """Print a job as `scontrol show job --oneliner` does, unless it is forgotten."""
    job = read(arguments[-1])
    if job is None or ("FAKE_SLURM_ACCOUNTING" in os.environ and job["state"] != "RUNNING"):
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    requeue = int("no-requeue" not in job["options"])
    sys.stdout.write(
        f"JobId={arguments[-1]} JobState={job['state']} Requeue={requeue} Restarts=0\n"
    )


def sacct(*arguments: str) -> None:
    """Print a job's state, where there is an accounting."""
    if "FAKE_SLURM_ACCOUNTING" not in os.environ:
        sys.exit("Slurm accounting storage is disabled")
    job = read(arguments[-1].removeprefix("--jobs="))
    if job is not None:
        by = " by 0" if job["state"] == "CANCELLED" else ""
        sys.stdout.write(f"{job['state']}{by}\n")


def scancel(*arguments: str) -> None:
    """Send a signal to the batch shell or to what srun has started, or end a job."""
    number = arguments[-1]
    job = read(number)
    signals = [each.split("=")[1] for each in arguments if each.startswith("--signal=")]
    if job is None or job["state"] != "RUNNING":
        message = f"scancel: error: Kill job error on job id {number}: Invalid job id specified"
        sys.exit(message if signals else 0)
    with contextlib.suppress(ProcessLookupError):
        if signals:
            for process in [job["pid"]] if "--batch" in arguments else tasks_of(number):
                os.kill(process, getattr(signal, f"SIG{signals[0]}"))
            return
    change(job, number, "CANCELLED")
    with contextlib.suppress(psutil.NoSuchProcess):
        batch = psutil.Process(job["pid"])
        # All of a job's processes, in whatever session they are.
        processes = [batch, *batch.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, left = psutil.wait_procs(processes, timeout=10)
        for process in left:
            process.kill()


def squeue(*arguments: str) -> None:
    """Print the steps of a job: what srun has started, and the batch script."""
    number = arguments[-1].removeprefix("--jobs=")
    sys.stdout.write(f"{number}.0\n" * bool(tasks_of(number)) + f"{number}.batch\n")


def srun(*arguments: str) -> None:
    """Run a command once for each task; asked to end, kill them all."""
    words = list(arguments)
    options = {}
    while words[0].startswith("--"):
        name, _, value = words.pop(0)[2:].partition("=")
        options[name] = value
    tasks = [
        subprocess.Popen(words, env={**os.environ, "SLURM_PROCID": str(rank)})
        for rank in range(int(options["ntasks"]))
    ]

    def kill(number: int, frame: object) -> None:
        for task in tasks:
            task.kill()

    signal.signal(signal.SIGTERM, kill)
    step = FOLDER / f"{os.environ['SLURM_JOB_ID']}.step"
    step.write_text(" ".join(str(task.pid) for task in tasks))
    codes = [task.wait() for task in tasks]
    step.unlink()
    sys.exit(max(128 - code if code < 0 else code for code in codes))


def tasks_of(number: str) -> list[int]:
    """List the processes that srun has started in a job."""
    file = FOLDER / f"{number}.step"
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def write(number: str, job: dict) -> None:
    """Write a job down."""
    partial = FOLDER / f"{number}.partial"
    partial.write_text(json.dumps(job))
    partial.replace(FOLDER / f"{number}.json")


def read(number: str) -> dict | None:
    """Read what is written of a job."""
    file = FOLDER / f"{number}.json"
    return json.loads(file.read_text()) if file.exists() else None


def change(job: dict, number: str, state: str) -> None:
    """Set a job's state."""
    write(number, {**job, "state": state})


def alive(pid: int) -> bool:
    """Whether a process still runs; one that has ended and nobody has asked for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    called = {name: globals()[name] for name in COMMANDS}
    called[sys.argv[1]](*sys.argv[2:])
