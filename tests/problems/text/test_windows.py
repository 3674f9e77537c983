import numpy as np
import pytest

from implicit_models.problems.text.evaluation.windows import Windows

LENGTHS = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 40])
SETTINGS = [(context, stride) for context in (1, 2, 4, 7) for stride in range(1, context + 1)]


@pytest.mark.parametrize(("context_length", "stride"), SETTINGS)
def test_every_token_is_scored_once_in_order(context_length, stride):
    windows = Windows.over(LENGTHS, context_length=context_length, stride=stride)
    assert (np.diff(windows.document) >= 0).all()
    for number, length in enumerate(LENGTHS):
        of_it = np.flatnonzero(windows.document == number)
        scored = [
            token
            for window in of_it
            for token in range(
                windows.start[window] + windows.length[window] - windows.num_scored[window],
                windows.start[window] + windows.length[window],
            )
        ]
        assert scored == list(range(length))
    assert (windows.num_scored >= 1).all() and (windows.length >= windows.num_scored).all()
    assert windows.length.max() <= context_length


@pytest.mark.parametrize(("context_length", "stride"), SETTINGS)
def test_a_token_has_all_the_context_that_the_stride_leaves_it(context_length, stride):
    windows = Windows.over(LENGTHS, context_length=context_length, stride=stride)
    for window in range(len(windows)):
        first = windows.length[window] - windows.num_scored[window]  # tokens before the first
        if windows.start[window] > 0:
            assert first == context_length - stride
        else:
            assert first == 0


def test_a_stride_of_the_context_reads_the_text_once():
    windows = Windows.over(LENGTHS, context_length=5, stride=5)
    assert (windows.length == windows.num_scored).all()
    assert windows.length.sum() == LENGTHS.sum()


def test_a_window_reads_the_start_token_or_what_stands_before_it():
    document = np.arange(100, 107, dtype=np.uint16)
    windows = Windows.over(np.array([7]), context_length=4, stride=2)
    read = [windows.read(window, document, 9) for window in range(len(windows))]
    assert [inputs.tolist() for inputs, _ in read] == [
        [9, 100, 101, 102],
        [101, 102, 103, 104],
        [103, 104, 105],
    ]
    assert [labels.tolist() for _, labels in read] == [
        [100, 101, 102, 103],
        [102, 103, 104, 105],
        [104, 105, 106],
    ]
    assert windows.num_scored.tolist() == [4, 2, 1]


def test_batches_hold_every_window_once_and_neighbouring_lengths_together():
    windows = Windows.over(LENGTHS, context_length=6, stride=3)
    batches = windows.batches(4)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(windows)))
    assert [len(batch) for batch in batches[:-1]] == [4] * (len(batches) - 1)
    in_order = windows.length[np.concatenate(batches)]
    assert (np.diff(in_order) <= 0).all()


@pytest.mark.parametrize("stride", [0, 5])
def test_a_stride_that_would_leave_tokens_out_is_refused(stride):
    with pytest.raises(ValueError, match=f"stride is {stride}; .* between 1 and .* 4"):
        Windows.over(LENGTHS, context_length=4, stride=stride)
