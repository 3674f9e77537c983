"""git, asked about the repository of a folder."""

import os
import subprocess
from pathlib import Path

# What names another repository: git sets it in hooks and in `rebase --exec`.
_OF_ANOTHER = {
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
}


def git(
    folder: Path, *arguments: str, given: bytes | None = None, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder, whatever repository the environment names.

    Parameters
    ----------
    given
        To its standard input.
    variables
        Of git's, such as ``GIT_INDEX_FILE``.

    Raises
    ------
    FileNotFoundError
        Where git is not installed.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER}
    return subprocess.run(
        ["git", *arguments], cwd=folder, input=given, capture_output=True, env={**kept, **variables}
    )


def text_of(printed: bytes) -> str:
    """Return what git has printed as text."""
    return printed.decode(errors="replace")
