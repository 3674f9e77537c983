"""How commands find their repository, hand over to other commands, and tell mistakes."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

MISTAKE = 2  # exit status, beside those of terminal.py


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong and what is right."""

    def error(self, message: str) -> NoReturn:
        """Leave with the status of a mistake."""
        print(f"error: {message}; {' '.join(self.format_usage().split())}", file=sys.stderr)
        sys.exit(MISTAKE)


def repository() -> Path:
    """Return the repository around the working directory, and go there."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "dvc.yaml").exists() and (folder / "conf" / "preset").is_dir():
            os.chdir(folder)
            return folder
    fail(f"{here} is in no clone of the repository (no dvc.yaml here or above); go to one")


def hand_over(module: str, *arguments: str) -> NoReturn:
    """Run another command of the repository in a process, and end with its status."""
    root = repository()
    from pipelines.terminal_process import run_in_terminal

    command = [sys.executable, "-m", module, *arguments]
    sys.exit(run_in_terminal(command, cwd=root, environment=os.environ))


@contextlib.contextmanager
def mistakes() -> Iterator[None]:
    """Turn a mistake of the user into one line and the exit status of mistakes."""
    others = ("hydra.", "omegaconf.", "dvc.")
    try:
        yield
    except Exception as error:
        module = type(error).__module__
        if module.startswith(("implicit_models.", "pipelines.")):
            fail(*str(error).splitlines())
        elif module.startswith(others) or isinstance(error, OSError):
            fail(" ".join(str(error).split()))
        raise


def mistake(error: Exception) -> int:
    """Print a mistake of the user, or each of several, in one line; return the exit status."""
    from implicit_models.parameters import ParameterError

    for line in str(error).splitlines() if isinstance(error, ParameterError) else [str(error)]:
        print(f"error: {' '.join(line.split())}", file=sys.stderr)
    return MISTAKE


def fail(*messages: str) -> NoReturn:
    """Print a line for each message, and end with the status of mistakes."""
    for message in messages:
        print(f"error: {message}", file=sys.stderr)
    sys.exit(MISTAKE)
