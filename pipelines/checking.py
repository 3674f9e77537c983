"""The repository's own check of parameters, `python -m stages.check`, before anything runs."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from implicit_models.parameters import ParameterError

CHECK = Path("stages", "check.py")
_MISTAKES = 2  # its exit status
_SHOWN = 20  # lines of a message


def check_parameters(root: Path, contents: Mapping[str, str]) -> None:
    """Check contents of params.yaml, all of them in one process.

    Parameters
    ----------
    root
        The repository; where it has no check of its own, there is nothing to be said.
    contents
        By what they are called in messages.

    Raises
    ------
    ParameterError
        With a line for each mistake.
    """
    if not (root / CHECK).exists():
        return
    done = subprocess.run(
        [sys.executable, "-m", ".".join(CHECK.with_suffix("").parts), "--given"],
        cwd=root,
        input=json.dumps(dict(contents)),
        capture_output=True,
        text=True,
    )
    if not done.returncode:
        return
    if done.returncode != _MISTAKES:
        said = done.stderr.strip()[-500:]
        raise ParameterError(
            f"the check of the parameters has failed: {said}; `python -m stages.check` tells more"
        )
    levels = ("error: ", "missing: ")
    lines = [line for line in done.stderr.splitlines() if line.startswith(levels)]
    shown = [line.partition(": ")[2] for line in lines[:_SHOWN]]
    if len(lines) > _SHOWN:
        shown.append(f"and {len(lines) - _SHOWN} more")
    raise ParameterError("\n".join(shown))
