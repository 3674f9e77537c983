"""How far a training has come: what a checkpoint says besides its tensors."""

from dataclasses import dataclass, field
from typing import Any

from implicit_models.training.carried import Carried


@dataclass(frozen=True)
class Progress:
    """How far a training has come.

    Attributes
    ----------
    step
        Optimiser steps done, those that were left out included: the position in the schedule.
    sequences
        Sequences drawn so far, in all segments: the position in the data.
    batch_size
        Sequences of the last step; 0 where there was none, or it was not noted.
    tokens, flops
        Tokens that the entry has been trained on so far, in all segments, and the floating-point
        operations that took; validation is not among them.
    seconds
        Wall time of this segment's loop so far, validation and checkpoints included.
    skipped_steps
        Steps of this segment that were left out, because something in them was not finite.
    skipped_in_a_row
        The last of them, without one between them that was not.
    changes
        What was changed in the midst of the training, in words: other code, another batch.
    history
        One row of metrics for each time something was logged in this segment.
    carried
        What the sequences of the next step go on from, of this process; None where they do not. Its
        tensors lie beside the model's.
    """

    step: int
    sequences: int = 0
    batch_size: int = 0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    changes: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    carried: Carried | None = field(default=None, compare=False)

    def plain(self) -> dict[str, Any]:
        """Return all but the tensors, as JSON has it."""
        return {name: value for name, value in self.__dict__.items() if name != "carried"}
