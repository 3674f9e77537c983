"""Slurm's commands as far as they are used: jobs are processes of this machine.

Its folder is ``FAKE_SLURM``; a job is a file there, JOB.json, with its process and its state. The
first job's number is ``FAKE_SLURM_FIRST``: submitit remembers what has become of a number.
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

FOLDER = Path(os.environ.get("FAKE_SLURM", "."))
COMMANDS = ("sbatch", "sacct", "scancel", "srun")


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
        re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", Path(script).read_text(), re.MULTILINE)
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
    output = options["output"].strip("'").replace("%j", number)
    error = options.get("error", output).strip("'").replace("%j", number)
    with open(output, "ab") as out, open(error, "ab") as err:
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
    sys.stdout.write(f"Submitted batch job {number}\n")


def sacct(*arguments: str) -> None:
    """Print the states of all jobs."""
    sys.stdout.write("JobID|State|NodeList\n")
    for file in sorted(FOLDER.glob("*.json")):
        job = json.loads(file.read_text())
        state = job["state"]
        if state == "RUNNING" and not alive(job["pid"]):
            state = "COMPLETED"
        sys.stdout.write(f"{file.stem}|{state}|localhost\n")


def scancel(*arguments: str) -> None:
    """Send a signal to the batch shell, or end a job."""
    number = arguments[-1]
    job = json.loads((FOLDER / f"{number}.json").read_text())
    signals = [each.split("=")[1] for each in arguments if each.startswith("--signal=")]
    with contextlib.suppress(ProcessLookupError):
        if signals:
            os.kill(job["pid"], getattr(signal, f"SIG{signals[0]}"))
            return
        os.killpg(job["pid"], signal.SIGTERM)
        for _ in range(100):
            if not alive(job["pid"]):
                break
            time.sleep(0.1)
        os.killpg(job["pid"], signal.SIGKILL)
    write(number, {**job, "state": "CANCELLED by 0"})


def srun(*arguments: str) -> None:
    """Run a command once for each task, and hand signals on to all of them."""
    words = list(arguments)
    options = {}
    while words[0].startswith("--"):
        name, _, value = words.pop(0)[2:].partition("=")
        options[name] = value
    tasks = [
        subprocess.Popen(words, env={**os.environ, "SLURM_PROCID": str(rank)})
        for rank in range(int(options["ntasks"]))
    ]

    def hand_on(number: int, frame: object) -> None:
        for task in tasks:
            task.send_signal(number)

    signal.signal(signal.SIGTERM, hand_on)
    sys.exit(max(task.wait() for task in tasks))


def write(number: str, job: dict) -> None:
    """Write a job down."""
    partial = FOLDER / f"{number}.partial"
    partial.write_text(json.dumps(job))
    partial.replace(FOLDER / f"{number}.json")


def alive(pid: int) -> bool:
    """Whether a process still runs; one that has ended and nobody has asked for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    {"sbatch": sbatch, "sacct": sacct, "scancel": scancel, "srun": srun}[sys.argv[1]](*sys.argv[2:])
