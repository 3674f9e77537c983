"""What a segment's training is: a value, from which the weights follow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import nn

from implicit_models.language_models.labelled import Continuation, Sequences
from implicit_models.training.curriculum import Segment
from implicit_models.training.distributed import Execution
from implicit_models.training.parameters import MonitoringParameters, OptimisationParameters

Validate = Callable[[nn.Module, Execution], Mapping[str, float]]


class BatchIndices(Protocol):
    """Which sequences a step trains on: a function of the position in the data alone."""

    def __call__(self, position: int) -> np.ndarray:
        """Return the sequences of the global batch that follows the first ``position`` many."""
        ...


class CountFlops(Protocol):
    """Counts what a training step computes."""

    def __call__(
        self,
        num_sequences: int,
        length: int,
        search_evaluations: float,
        passes_carry: bool = False,
        /,
    ) -> float:
        """Count; ``search_evaluations`` are of single tokens, without gradient."""
        ...


@dataclass(frozen=True)
class Training:
    """Everything a segment's training reads; the same value always gives the same weights.

    Attributes
    ----------
    batch_size
        Sequences of a step, those of all processes together.
    batch_indices
        Which these are.
    stream_indices
        Which these are where they go on from those of the step before.
    continuation
        How they do; None where they cannot.
    validate
        Metrics of the model on held-out data, logged under ``validation_``.
    count_flops
        Floating-point operations of a training step.
    peak_flops
        The most floating-point operations a second of a process's device; None where the model
        FLOP utilisation is not to be known.
    """

    segment: Segment
    optimisation: OptimisationParameters
    monitoring: MonitoringParameters
    sequences: Sequences
    batch_size: int
    batch_indices: BatchIndices
    validate: Validate
    count_flops: CountFlops
    seed: int
    peak_flops: float | None = None
    stream_indices: BatchIndices | None = None
    continuation: Continuation | None = None
