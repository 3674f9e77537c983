"""A training that was begun otherwise is not gone on with unless that is asked for.

Another global batch makes another training of the rest, because steps and learning rate count
batches; other code, or another torch, may. Asked for, a training goes on from where it was, behind
the sequences that were drawn so far, and what was changed is noted for ever. Nothing is deleted.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from implicit_models.parameters import ParameterError
from implicit_models.training.checkpoints import list_checkpoints
from implicit_models.training.progress import Progress
from stages.finished_checkpoints import is_finished
from stages.training.identity import Identity

CHANGED_BATCH = "IMPLICIT_MODELS_CHANGED_BATCH"
CHANGED_CODE = "IMPLICIT_MODELS_CHANGED_CODE"


@dataclass(frozen=True)
class BegunOtherwise:
    """The checkpoints of a training that differs in its batch, its code or its torch alone.

    Attributes
    ----------
    changes
        In words.
    """

    folder: Path
    changes: tuple[str, ...]


def find_begun_otherwise(folder: Path, identity: Identity) -> BegunOtherwise | None:
    """Find the checkpoints to go on from, which lie beside a folder that has none yet.

    Raises
    ------
    ParameterError
        Where there are some, and nobody has said whether to go on from them, or in other words than
        are known.
    """
    choices = {variable: _choice(variable) for variable in (CHANGED_BATCH, CHANGED_CODE)}
    if list_checkpoints(folder):
        return None
    for other, before in _unfinished(folder, identity):
        questions = list(_questions(list_checkpoints(other)[0], before, identity))
        if any(choices[variable] == "restart" for variable, _, _ in questions):
            return None
        for variable, _, question in questions:
            if choices[variable] != "continue":
                raise ParameterError(question)
        return BegunOtherwise(other, tuple(change for _, change, _ in questions))
    return None


def check_start(folder: Path, start: Path, begin: Progress, batch_size: int) -> None:
    """Check that a segment has the batch of the one before, whose state it starts from.

    Parameters
    ----------
    folder
        Of the segment's own checkpoints: nothing is asked again where it has some.
    begin
        How far the segments before came.

    Raises
    ------
    ParameterError
        Where it has another, and nobody has said to go on all the same.
    """
    last = begin.batch_size or begin.sequences / begin.step
    if last == batch_size or _choice(CHANGED_BATCH) == "continue" or list_checkpoints(folder):
        return
    raise ParameterError(
        f"{start} was trained last with a global batch of {last:g} sequences, and now it "
        f"has {batch_size}. Set optimisation.batch_size (or batch_tokens) back, or say what is "
        f"meant: {CHANGED_BATCH}=continue goes on from there with the new batch; to begin anew, "
        "run the stage that has left it again"
    )


def _unfinished(folder: Path, identity: Identity) -> list[tuple[Path, Identity]]:
    """List the unfinished trainings of the same rest beside a folder, the newest first."""
    found = []
    for other in folder.parent.glob("*/"):
        before = Identity.read(other)
        if before is None or before.rest != identity.rest or other == folder:
            continue
        if list_checkpoints(other) and not is_finished(other):
            found.append((other, before))
    return sorted(found, key=lambda each: list_checkpoints(each[0])[0].stat().st_mtime_ns)[::-1]


def _questions(checkpoint: Path, before: Identity, now: Identity) -> Iterator[tuple[str, str, str]]:
    """Yield, for what is changed, the variable that answers, the change in words, the question."""
    if before.batch_size != now.batch_size:
        yield (
            CHANGED_BATCH,
            f"a global batch of {now.batch_size} sequences in place of {before.batch_size}",
            f"{checkpoint} is this training with a global batch of {before.batch_size} sequences, "
            f"and now it has {now.batch_size}. Set optimisation.batch_size (or batch_tokens) back, "
            f"or say what is meant: {CHANGED_BATCH}=continue goes on from there with the new "
            f"batch, {CHANGED_BATCH}=restart begins anew",
        )
    if changed := ", ".join(now.code_changes(before)):
        yield (
            CHANGED_CODE,
            f"other code: {changed}",
            f"{checkpoint} is this training with other code, after "
            f"{int(checkpoint.stem.removeprefix('step_'))} steps; what differs: {changed}. Take "
            f"the code from before, or say what is meant: {CHANGED_CODE}=continue goes on from "
            f"there with the code as it is now, which the model's card will say; "
            f"{CHANGED_CODE}=restart, or removing {checkpoint.parent}, begins anew",
        )


def _choice(variable: str) -> str | None:
    choice = os.environ.get(variable)
    if choice and choice not in ("continue", "restart"):
        raise ParameterError(f"{variable} is {choice!r}; allowed are continue and restart")
    return choice
