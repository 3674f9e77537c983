"""Where and when a report was made."""

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_SECONDS = 10.0
_CODE = ("implicit_models", "stages", "dvc.yaml", "conf")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where and when a report was made.

    Attributes
    ----------
    date
        Of the report.
    commit
        Of the repository, and whether code has changed since; None where there is none.
    machine
        Processor, cores and GPUs.
    tracking_server
        The address of MLflow, where it is a server; None for any other store.
    """

    date: str
    commit: str | None
    machine: str
    tracking_server: str | None = None

    @classmethod
    def now(cls, root: Path, tracking_server: str | None = None) -> "Provenance":
        """Return that of a report that is made here and now."""
        return cls(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            commit=_commit(root),
            machine=_machine(),
            tracking_server=tracking_server,
        )


def _commit(root: Path) -> str | None:
    found = _output("git", "-C", str(root), "rev-parse", "--short=12", "HEAD")
    if not found:
        return None
    changed = _output("git", "-C", str(root), "status", "--porcelain", "--", *_CODE)
    if changed is None:
        return f"{found}, and git does not say whether there are changes since"
    return f"{found} with changes that are not committed" if changed else found


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    listed = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    gpus = (listed or "").splitlines()
    names = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))
    return f"{_processor()}, {cores} core{'s' * (cores != 1)}, {names or 'no GPU'}"


def _processor() -> str:
    try:
        found = re.search(r"(?m)^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _output(*command: str) -> str | None:
    """Return what a program prints; None where it is not there, fails, or does not end."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
