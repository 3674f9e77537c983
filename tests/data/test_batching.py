"""Batches as pure functions of the training step."""

import numpy as np
import pytest

from implicit_models.data.batching import batch_indices


@pytest.mark.parametrize(
    ("num_sequences", "batch_size"), [(10, 5), (10, 3), (10, 10), (7, 16), (1, 3), (101, 1)]
)
def test_every_sequence_once_an_epoch(num_sequences, batch_size):
    num_epochs = 6
    num_steps = -(-num_epochs * num_sequences // batch_size)
    stream = np.concatenate(
        [
            batch_indices(step, batch_size=batch_size, num_sequences=num_sequences, seed=0)
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
        return batch_indices(step, batch_size=8, num_sequences=20, seed=seed).tolist()

    forwards = [batch(step) for step in range(50)]
    batch(1000)
    assert [batch(step) for step in reversed(range(50))] == forwards[::-1]
    assert [batch(step, seed=4) for step in range(50)] != forwards


def test_a_batch_may_be_written_to():
    first = batch_indices(0, batch_size=4, num_sequences=4, seed=0)
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(batch_indices(0, batch_size=4, num_sequences=4, seed=0), kept)


def test_refusals():
    with pytest.raises(ValueError, match="at least 0"):
        batch_indices(-1, batch_size=1, num_sequences=1, seed=0)
