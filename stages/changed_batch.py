"""A training that was begun with another global batch is not gone on with unless that is asked for.

Steps and learning rate count batches, so another batch makes another training of the rest. Asked
for, it goes on behind the sequences that were drawn so far.
"""

import json
import os
from pathlib import Path

from implicit_models.parameters import ParameterError
from stages.common import write_json
from stages.ended_trainings import is_ended

VARIABLE = "IMPLICIT_MODELS_CHANGED_BATCH"

_FILE = "training.json"


def note_batch(folder: Path, batch_size: int, rest: str) -> None:
    """Write into a folder of checkpoints whose they are.

    Parameters
    ----------
    rest
        Digest of everything else that the weights depend on.
    """
    write_json(folder / _FILE, {"batch_size": batch_size, "rest": rest})


def check_start(folder: Path, start: Path, steps: int, sequences: int, batch_size: int) -> None:
    """See that a segment has the batch of the one before, whose state it starts from.

    Parameters
    ----------
    folder
        Of the segment's own checkpoints: nothing is asked again where it has some.
    steps, sequences
        Those that the segments before took.

    Raises
    ------
    ParameterError
        Where it has another, and nobody has said to go on all the same.
    """
    same = sequences == steps * batch_size
    if same or _choice() == "continue" or any(folder.glob("step_*[0-9]")):
        return
    raise ParameterError(
        f"{start} was trained with a global batch of {sequences / steps:g} sequences, and now it "
        f"has {batch_size}. Set optimisation.batch_size (or batch_tokens) back, or say what is "
        f"meant: {VARIABLE}=continue goes on from there with the new batch; to begin anew, run the "
        "stage that has left it again"
    )


def begun_with_another_batch(folder: Path, batch_size: int, rest: str) -> Path | None:
    """Give the checkpoints to go on from, which lie beside a folder that has none yet.

    Raises
    ------
    ParameterError
        Where there are some, and nobody has said whether to go on from them, or in other words than
        are known.
    """
    choice = _choice()
    if any(folder.glob("step_*[0-9]")):
        return None
    for other in sorted(folder.parent.glob(f"*/{_FILE}")):
        found = json.loads(other.read_text())
        begun = sorted(other.parent.glob("step_*[0-9]"))
        if found["rest"] != rest or found["batch_size"] == batch_size:
            continue
        if not begun or is_ended(other.parent):
            continue
        if choice == "restart":
            return None
        if choice == "continue":
            return other.parent
        raise ParameterError(
            f"{begun[-1]} is this training with a global batch of {found['batch_size']} "
            f"sequences, and now it has {batch_size}. Set optimisation.batch_size (or "
            f"batch_tokens) back, or say what is meant: {VARIABLE}=continue goes on from there "
            f"with the new batch, {VARIABLE}=restart begins anew"
        )
    return None


def _choice() -> str | None:
    choice = os.environ.get(VARIABLE)
    if choice and choice not in ("continue", "restart"):
        raise ParameterError(f"{VARIABLE} is {choice!r}; allowed are continue and restart")
    return choice
