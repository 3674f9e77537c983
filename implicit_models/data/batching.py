"""Which sequences a training step sees: a pure function of the position in the data."""

import functools

import numpy as np
from jaxtyping import Int64, UInt64

# Sequences whose order is drawn as a whole, in at most 32 MiB; that of more is computed on the way.
WRITTEN_DOWN = 2**22

_NUM_ROUNDS = 6
_MULTIPLIERS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)  # SplitMix64's


def batch_indices(
    position: int, *, batch_size: int, num_sequences: int, seed: int
) -> Int64[np.ndarray, " B"]:
    """Return the indices of the ``batch_size`` sequences that follow the first ``position`` many.

    The positions walk through one permutation of all sequences after another, so that every
    sequence comes up exactly once in an epoch; a batch may end one epoch and begin the next.
    Nothing but the arguments counts, neither how many processes share the batch nor how many
    sequences those before had: training can be resumed at any position.
    """
    if position < 0 or batch_size < 1 or num_sequences < 1:
        raise ValueError(
            f"position, batch_size, num_sequences are {position}, {batch_size}, {num_sequences}; "
            "the position must be at least 0, the others at least 1"
        )
    places = position + np.arange(batch_size)
    epochs, within = np.divmod(places, num_sequences)
    indices = np.empty(batch_size, dtype=np.int64)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        key = (seed, int(epoch))
        if num_sequences <= WRITTEN_DOWN:
            indices[chosen] = _order(num_sequences, key)[within[chosen]]
        else:
            indices[chosen] = permuted(within[chosen], num_sequences, key)
    return indices


def stream_indices(
    position: int, *, batch_size: int, num_sequences: int, seed: int
) -> Int64[np.ndarray, " B"]:
    """Return the indices of a batch whose sequences go on from those of the batch before.

    There are ``batch_size`` streams. All walk through the sequences in their order, and from the
    last one to the first, and they begin at equal distances from each other: in ``num_sequences /
    batch_size`` steps they come by every sequence once, and in as many times more each of them has.

    Parameters
    ----------
    position
        As in `batch_indices`.
    seed
        Turns the circle of sequences.
    """
    starts = np.arange(batch_size) * num_sequences // batch_size
    turned = int(np.random.default_rng(seed).integers(num_sequences))
    return (starts + turned + position // batch_size) % num_sequences


@functools.lru_cache(maxsize=4)
def _order(size: int, key: tuple[int, int]) -> Int64[np.ndarray, " size"]:
    return np.random.default_rng(key).permutation(size)


def permuted(
    positions: Int64[np.ndarray, " B"], size: int, key: tuple[int, ...]
) -> Int64[np.ndarray, " B"]:
    """Return the values at some positions of a random permutation of 0 .. size - 1.

    The permutation is never written down, so that it takes no memory: a Feistel network over the
    smallest square of a power of two that holds it, walked through until a number below ``size``
    comes up (Black & Rogaway 2002), four times at most on average.

    Parameters
    ----------
    key
        Chooses the permutation.
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    keys = np.random.SeedSequence(key).generate_state(_NUM_ROUNDS, np.uint64)
    numbers = np.asarray(positions, dtype=np.uint64)
    result = _encipher(numbers, half, keys)
    while len(outside := np.flatnonzero(result >= size)):
        result[outside] = _encipher(result[outside], half, keys)
    return result.astype(np.int64)


def _encipher(
    numbers: UInt64[np.ndarray, " B"], half: np.uint64, keys: UInt64[np.ndarray, " rounds"]
) -> UInt64[np.ndarray, " B"]:
    """Permute the numbers of ``2 * half`` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(numbers: UInt64[np.ndarray, " B"]) -> UInt64[np.ndarray, " B"]:
    """Spread every bit over all of them."""
    for multiplier in _MULTIPLIERS:
        numbers = (numbers ^ (numbers >> np.uint64(29))) * multiplier
    return numbers ^ (numbers >> np.uint64(32))
