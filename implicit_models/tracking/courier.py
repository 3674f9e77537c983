"""The process beside the training that sends spools, seen from the stage that writes one.

Importing MLflow costs seconds of processor time, which a thread would take from the training loop
through the interpreter lock. One process of low priority for all stages of a repository pays it
once, goes on to the next stage's spool, and leaves a few seconds after the last stage has.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from implicit_models.tracking.spool import FOLDER, Spool, locked

_PROJECT = Path(__file__).parents[2]
_START_SECONDS = 30.0


@dataclass(frozen=True)
class Courier:
    """The courier of the repository at `root`, running or not."""

    root: Path

    @property
    def lock_path(self) -> Path:
        """File locked by the running courier."""
        return self.root / FOLDER / "courier.lock"

    @property
    def _report_path(self) -> Path:
        return self.root / FOLDER / "courier.json"

    def is_running(self) -> bool:
        """Whether a courier is at work."""
        with locked(self.lock_path, wait=False) as free:
            return not free

    def ensure(self) -> None:
        """Start a courier unless one is at work.

        Raises
        ------
        OSError, subprocess.SubprocessError
            If no process can be started.
        """
        if self.is_running():
            return
        search_path = [str(_PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "implicit_models.tracking.sync", "--courier"]
        with (self.root / FOLDER / "courier.log").open("a") as log:
            # The command detaches itself and returns at once: nothing is left to be waited for.
            subprocess.run(
                [*command, "--root", str(self.root.absolute())],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(search_path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=_START_SECONDS,
                check=False,
            )

    def report(self, problems: Mapping[Spool, tuple[str, float]]) -> None:
        """Write down which spools cannot be sent, why, and when that was last tried."""
        partial = self._report_path.with_suffix(".partial")
        partial.write_text(json.dumps({s.path.name: problem for s, problem in problems.items()}))
        partial.replace(self._report_path)

    def problem(self, spool: Spool, since: float) -> str | None:
        """Return why a spool could not be sent, if that was tried after a time (since 1970)."""
        try:
            reason, tried = json.loads(self._report_path.read_text())[spool.path.name]
        except (OSError, ValueError, KeyError):
            return None
        return reason if tried >= since else None
