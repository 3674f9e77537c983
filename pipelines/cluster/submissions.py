"""What a pool was given and has not answered yet, written down in the flow's clone.

A flow that is killed leaves its jobs and runs where they are. They go on, and the next flow that
wants the same of the same stage waits for them, in place of having it done a second time.
"""

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from implicit_models.files import write_whole
from pipelines.cluster.assignment import Assignment
from pipelines.cluster.placement import Pool
from pipelines.running import Log

FOLDER = Path(".dvc") / "tmp" / "submissions"

_SETTINGS = ("kind", "clone", "deployment", "slurm")  # of a pool, by which it does otherwise


@dataclass(frozen=True)
class Submission:
    """One stage's place in a pool's queue.

    Attributes
    ----------
    path
        Of the note.
    digest
        Of what was asked for, and of whom: all else is another submission.
    """

    path: Path
    digest: str

    @classmethod
    def of(cls, root: Path, name: str, pool: Pool, assignment: Assignment) -> "Submission":
        """Return that of an assignment; whoever asks for it holds the stage's lock."""
        settings = {key: getattr(pool, key) for key in _SETTINGS}
        content = json.dumps([name, settings, assignment.to_dict()], sort_keys=True, default=str)
        path = root / FOLDER / f"{quote(assignment.request.stage, safe='@')}.json"
        return cls(path, hashlib.sha256(content.encode()).hexdigest())

    def number(self, log: Log) -> str | None:
        """Return the number under which the pool has it; None where nothing was noted.

        Something else that a killed flow has asked of this stage is told: it may run on.
        """
        found = self._read()
        if found is None:
            return None
        if found["digest"] == self.digest:
            return found["number"]
        log(
            "a flow that was killed has asked for something else of this stage, "
            f"{found['called']}; where that still runs, end it: {found['end']}"
        )
        return None

    def note(self, number: str, called: str, end: str) -> None:
        """Write down under which number the pool has it, and how a user ends it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"digest": self.digest, "number": number, "called": called, "end": end}
        write_whole(self.path, json.dumps(content))

    def forget(self) -> None:
        """Forget it: it has ended."""
        self.path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(found, dict) and {"digest", "number", "called", "end"} <= found.keys():
                return found
        return None
