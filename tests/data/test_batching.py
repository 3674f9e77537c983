"""Batches as pure functions of the position in the data."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from implicit_models.data import batching
from implicit_models.data.batching import batch_indices, permuted


@pytest.mark.parametrize(
    ("num_sequences", "batch_size"), [(10, 5), (10, 3), (10, 10), (7, 16), (1, 3), (101, 1)]
)
@pytest.mark.parametrize("written_down", [True, False])
def test_every_sequence_once_an_epoch(num_sequences, batch_size, written_down, monkeypatch):
    monkeypatch.setattr(batching, "WRITTEN_DOWN", 2**22 if written_down else 0)
    num_epochs = 6
    num_steps = -(-num_epochs * num_sequences // batch_size)
    stream = np.concatenate(
        [
            batch_indices(
                step * batch_size, batch_size=batch_size, num_sequences=num_sequences, seed=0
            )
            for step in range(num_steps)
        ]
    )
    assert stream.dtype == np.int64
    epochs = stream[: num_epochs * num_sequences].reshape(num_epochs, num_sequences)
    expected = np.broadcast_to(np.arange(num_sequences), epochs.shape)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), expected)
    if num_sequences > 5:
        assert len({tuple(epoch) for epoch in epochs.tolist()}) == num_epochs


def test_a_batch_depends_on_its_arguments_only():
    def batch(step, seed=3):
        return batch_indices(8 * step, batch_size=8, num_sequences=20, seed=seed).tolist()

    forwards = [batch(step) for step in range(50)]
    batch(1000)
    assert [batch(step) for step in reversed(range(50))] == forwards[::-1]
    assert [batch(step, seed=4) for step in range(50)] != forwards


def test_a_batch_may_be_written_to():
    first = batch_indices(0, batch_size=4, num_sequences=4, seed=0)
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(batch_indices(0, batch_size=4, num_sequences=4, seed=0), kept)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 65, 1000, 4097])
def test_a_permutation_that_is_not_written_down_is_one(size):
    first, other = (permuted(np.arange(size), size, key) for key in [(0, 0), (0, 1)])
    np.testing.assert_array_equal(np.sort(first), np.arange(size))
    assert size < 7 or (first != other).any()


def test_permutations_of_many_are_drawn_without_memory_and_evenly():
    size = 10**12 + 39
    tracemalloc.start()
    places = permuted(np.arange(4096), size, (0, 0))
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()
    assert len(set(places.tolist())) == 4096
    assert 0 <= places.min() <= places.max() < size
    counts = np.bincount(places * 16 // size, minlength=16)
    assert ((counts - 256) ** 2 / 256).sum() < 37.7  # chi squared of 15 degrees, one in a thousand
    pairs = np.corrcoef(places[:-1], places[1:])[0, 1]
    assert abs(pairs) < 0.05


def test_all_permutations_of_few_come_up():
    found = Counter(tuple(permuted(np.arange(4), 4, (seed, 0)).tolist()) for seed in range(2400))
    assert len(found) == 24
    assert sum((count - 100) ** 2 / 100 for count in found.values()) < 49.7  # of 23 degrees


def test_batches_go_on_behind_others_of_another_size():
    sizes = [3, 5, 2, 7]
    starts = np.cumsum([0, *sizes[:-1]])
    parts = [
        batch_indices(int(start), batch_size=size, num_sequences=11, seed=1)
        for start, size in zip(starts, sizes, strict=True)
    ]
    whole = batch_indices(0, batch_size=sum(sizes), num_sequences=11, seed=1)
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_refusals():
    with pytest.raises(ValueError, match="at least 0"):
        batch_indices(-1, batch_size=1, num_sequences=1, seed=0)


def test_the_order_of_few_sequences_is_numpys():
    """That of the word problems, whose results are published."""
    found = batch_indices(3, batch_size=5, num_sequences=8, seed=7)
    order = [np.random.default_rng([7, epoch]).permutation(8) for epoch in (0, 1)]
    np.testing.assert_array_equal(found, order[0][3:8])
    found = batch_indices(8, batch_size=8, num_sequences=8, seed=7)
    np.testing.assert_array_equal(found, order[1])


def test_batches_of_many_sequences_take_no_memory_of_their_number():
    tracemalloc.start()
    found = batch_indices(10**11, batch_size=512, num_sequences=10**9, seed=0)
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()
    assert found.min() >= 0 and found.max() < 10**9
