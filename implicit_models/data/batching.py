"""Which sequences a training step sees: a pure function of the step."""

import functools

import numpy as np
from jaxtyping import Int64


def batch_indices(
    step: int, *, batch_size: int, num_sequences: int, seed: int
) -> Int64[np.ndarray, " B"]:
    """Indices of the sequences of one training step, ``batch_size`` many.

    The steps walk through one permutation of all sequences after another, so that every sequence
    comes up exactly once in an epoch; a batch may end one epoch and begin the next. Nothing but
    the arguments counts: training can be resumed at any step.
    """
    if step < 0 or batch_size < 1 or num_sequences < 1:
        raise ValueError(
            f"step, batch_size, num_sequences are {step}, {batch_size}, {num_sequences}; "
            "the step must be at least 0, the others at least 1"
        )
    indices = np.empty(batch_size, dtype=np.int64)
    filled = 0
    while filled < batch_size:
        epoch, position = divmod(step * batch_size + filled, num_sequences)
        part = _epoch_order(epoch, num_sequences, seed)[position : position + batch_size - filled]
        indices[filled : filled + len(part)] = part
        filled += len(part)
    return indices


@functools.lru_cache(maxsize=4)
def _epoch_order(epoch: int, num_sequences: int, seed: int) -> Int64[np.ndarray, " num_sequences"]:
    return np.random.default_rng([seed, epoch]).permutation(num_sequences)
