"""What a pool was given and has not answered yet, written down in the flow's clone.

A flow that is killed leaves its jobs and runs where they are. They go on, and the next flow that
wants the same of the same stage waits for them, in place of having it done a second time.
"""

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from implicit_models.files import write_whole
from pipelines.cluster.assignment import Assignment

FOLDER = Path(".dvc") / "tmp" / "submissions"


@dataclass(frozen=True)
class Submission:
    """One stage's place in a pool's queue.

    Attributes
    ----------
    path
        Of the note.
    digest
        Of what was asked for: what was asked for otherwise is another submission.
    """

    path: Path
    digest: str

    @classmethod
    def of(cls, root: Path, pool: str, assignment: Assignment) -> "Submission":
        """Return that of an assignment; whoever asks for it holds the stage's lock."""
        content = json.dumps([pool, assignment.to_dict()], sort_keys=True)
        name = quote(assignment.request.stage, safe="@")
        return cls(root / FOLDER / f"{name}.json", hashlib.sha256(content.encode()).hexdigest())

    def number(self) -> str | None:
        """Return the number under which the pool has it; None where nothing was noted."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if found["digest"] == self.digest:
                return str(found["number"])
        return None

    def note(self, number: str) -> None:
        """Write down under which number the pool has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps({"digest": self.digest, "number": number}))

    def forget(self) -> None:
        """Forget it: it is answered, or given up."""
        self.path.unlink(missing_ok=True)
