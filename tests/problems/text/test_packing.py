"""Rows of a stream that is far larger than any memory."""

import numpy as np
import pytest

from implicit_models.problems.text.data.packing import pack
from implicit_models.problems.text.data.shards import TokenStream


def test_nothing_grows_with_the_corpus():
    shard = np.broadcast_to(np.uint16(7), (2**40,))  # a terabyte of tokens, in two bytes
    packed = pack(TokenStream([shard, shard]), 2048)
    assert len(packed.inputs) == 2**30 - 1
    chosen = np.array([0, 2**29 - 1, 2**29, 2**30 - 2])
    assert (packed.inputs[chosen] == 7).all() and packed.labels[chosen].shape == (4, 2048)
    assert packed.labels[2**30 - 2, -3:].tolist() == [7, 7, 7]


def test_rows_span_many_short_shards():
    tokens = np.arange(1000, dtype=np.uint16)
    shards = np.split(tokens, np.sort(np.random.default_rng(0).integers(0, 1000, 150)))
    rows = pack(TokenStream([shard for shard in shards if len(shard)]), 37).labels
    np.testing.assert_array_equal(rows[:], tokens[1:].reshape(27, 37))
    np.testing.assert_array_equal(rows[[3, -1], 5:9], rows[:][[3, -1], 5:9])


@pytest.mark.parametrize("key", [27, -28, [0, 27], [0.5], "a", (slice(None), 40)])
def test_rows_that_are_not_there(key):
    rows = pack(TokenStream([np.arange(1000, dtype=np.uint16)]), 37).inputs
    assert len(rows) == 27
    with pytest.raises(IndexError):
        rows[key]


def test_rows_can_be_chosen_by_a_mask():
    rows = pack(TokenStream([np.arange(10, dtype=np.uint8)]), 3).inputs
    assert rows[np.array([True, False, True])].tolist() == [[0, 1, 2], [6, 7, 8]]
    with pytest.raises(IndexError, match="as many"):
        rows[np.array([True, False])]
