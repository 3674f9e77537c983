"""Copies of this project in which a benchmark may run its pipeline."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

import yaml

from pipelines import disk
from pipelines.git import git, text_of
from pipelines.sweeps.own_files import link_own_files
from pipelines.sweeps.workspaces import cache_folder
from pipelines.terminal import AGAIN, UNRECORDED
from pipelines.terminal_process import run_in_terminal

ROOT = Path(__file__).parents[1]


class CommandError(RuntimeError):
    """A command in a copy that has failed, or was stopped."""


def interrupted(*, goes_on: bool) -> int:
    """Print in one line that Ctrl-C has ended a command; return the exit status.

    Parameters
    ----------
    goes_on
        Whether something is kept that the same command goes on from.
    """
    print(f"stopped; {AGAIN}" if goes_on else "stopped", file=sys.stderr)
    return 128 + signal.SIGINT


def clone(path: Path, *composed: str) -> None:
    """Copy this project as git has it or would, with parameters that are composed anew.

    A copy that is there already is brought up to date; what it has computed stays, and what has
    been computed here is not taken along.

    Parameters
    ----------
    composed
        A preset and settings on top of it, as ``scripts/compose.py`` takes them.

    Raises
    ------
    CommandError
        Where there is no git, or no repository of it here, or nothing can be composed.
    """
    try:
        listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    except FileNotFoundError:
        raise CommandError("git is not installed, by which a copy is made; install it") from None
    if listed.returncode:
        said = text_of(listed.stderr).strip()
        raise CommandError(
            f"git cannot list what a copy of {ROOT} has: {said}; clone the repository, and call "
            "this there"
        )
    names = map(os.fsdecode, listed.stdout.split(b"\0"))
    taken = [name for name in names if name and (ROOT / name).is_file() and not _is_computed(name)]
    for folder in {Path(name).parts[0] for name in taken if "/" in name} - {".dvc"}:
        shutil.rmtree(path / folder, ignore_errors=True)  # what git has no longer
    for name in taken:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, path / name)
    subprocess.run(["git", "init", "--quiet"], cwd=path, check=True)
    python(path, "scripts/compose.py", *composed)


@contextlib.contextmanager
def reproduced(
    path: Path, preset: str, *settings: str, jobs: int, cached: bool, seeds: Sequence[int] = ()
) -> Iterator[None]:
    """Run a preset in a copy, which goes on where an earlier call was stopped.

    No other call works in the copy until the block has ended, which reads what has come out.

    Parameters
    ----------
    jobs
        Stages that run at once.
    cached
        Whether the copy shares DVC's cache with this project, so that nothing is trained twice.
    seeds
        Have every model under each of them, beside those that the preset has.

    Raises
    ------
    CommandError
        Where a stage fails, or another call works in the copy.
    """
    widened = ("--seeds", ",".join(map(str, seeds))) if seeds else ()
    flow = ("-m", "pipelines.reproduce", "--jobs", str(jobs), *widened)
    with _alone_in(path) as lock:
        clone(path, preset, *settings)
        link_own_files(ROOT, path, yaml.safe_load((path / "params.yaml").read_text()))
        if cached:
            cache = str(cache_folder(ROOT))
            python(path, "-m", "dvc", "config", "--local", "cache.dir", cache)
        python(path, *flow, shown=True, ends=(0, UNRECORDED), keep_open=[lock])
        yield


@contextlib.contextmanager
def _alone_in(path: Path) -> Iterator[int]:
    """Keep other calls out of a copy; yield the descriptor, by which who inherits it does so too.

    Raises
    ------
    CommandError
        Where another call works there.
    """
    folder = path / ".dvc" / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "copy.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(f"another call works in {path}; let it end") from None
        except OSError as error:
            if not disk.has_no_flock(error):
                raise
            raise CommandError(f"{path}: {disk.NO_FLOCK}") from None
        yield file.fileno()


def _is_computed(name: str) -> bool:
    return name in {"dvc.lock", "params.yaml"} or name.startswith("results/")


def python(
    path: Path,
    *arguments: str,
    shown: bool = False,
    ends: Container[int] = (0,),
    keep_open: Sequence[int] = (),
) -> None:
    """Run this Python in a folder, on the code there, away from the user's servers.

    Parameters
    ----------
    shown
        Whether it has this process's terminal, and is waited for where that is stopped, as
        `run_in_terminal` does; otherwise what it prints is part of the error alone.
    ends
        The exit statuses with which it has done what it should.
    keep_open
        File descriptors that one that is shown inherits.

    Raises
    ------
    CommandError
        Where it ends with another status.
    KeyboardInterrupt
        Where one that is shown has ended after Ctrl-C.
    """
    left_out = ("PREFECT_API_URL", "MLFLOW_", "DVC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    search_path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    code = path if (path / "pipelines").is_dir() else ROOT
    command = [sys.executable, *arguments]
    environment = {**kept, "PYTHONPATH": str(code), "PATH": search_path}
    if shown:
        said = ""
        status = run_in_terminal(command, cwd=path, environment=environment, keep_open=keep_open)
    else:
        done = subprocess.run(
            command,
            cwd=path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        status, said = done.returncode, f":\n{done.stdout}"
    if status not in ends:
        raise CommandError(
            f"{json.dumps(arguments)} ended with {status}; mend that, and call again{said}"
        )
