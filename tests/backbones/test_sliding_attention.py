"""Attention to a window: blocks against the whole square, and carries against one long pass."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from implicit_models.backbones.sliding_attention import SlidingCarry, SlidingTrail
from implicit_models.kernels.reference import rotate
from implicit_models.kernels.sliding_attention import num_pairs, sliding_attention, sliding_masks
from tests.language_models.models import EXPLICIT_PADDED, EXPLICIT_SLIDING, our_model, tokens

GROUPS, HEADS, WIDTH = 2, 4, 6


def drawn(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(1))


def square(queries: Tensor, keys: Tensor, values: Tensor, window: int, filled: Tensor) -> Tensor:
    """All pairs, masked."""
    slots, length = window - 1, queries.shape[1]
    own = slots + torch.arange(length)[:, None]
    key = torch.arange(slots + length)
    mask = (key <= own) & (key > own - window) & (key >= slots - filled[:, None, None])
    swapped = (tensor.transpose(1, 2) for tensor in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(*swapped, mask[:, None], enable_gqa=True)
    return mixed.transpose(1, 2)


@pytest.mark.parametrize("length", [0, 1, 5, 63, 64, 65, 128, 300, 701])
@pytest.mark.parametrize("window", [1, 2, 7, 64, 90])
def test_blocks_attend_as_the_whole_square(length: int, window: int) -> None:
    filled = torch.tensor([0, window // 2, window - 1])
    queries = drawn(3, length, HEADS, WIDTH).requires_grad_()
    keys = drawn(3, window - 1 + length, GROUPS, WIDTH).requires_grad_()
    values = drawn(3, window - 1 + length, GROUPS, WIDTH).mul(2).requires_grad_()
    inputs = (queries, keys, values)
    found = sliding_attention(*inputs, sliding_masks(length, window, filled))
    expected = square(*inputs, window, filled)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    weights = drawn(*found.shape)
    for ours, theirs in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_work_grows_with_the_length_and_not_with_its_square() -> None:
    for window in (1, 20, 128, 500):
        least = max(window, 64)
        for length in (1, 63, 200, 5_000, 100_000):
            pairs = num_pairs(length, window)
            assert pairs >= length * min(window, length)
            assert pairs <= (length + 2 * least) * 3 * least
    assert num_pairs(200_000, 128) < 2.01 * num_pairs(100_000, 128)


@pytest.mark.parametrize("window", [1, 4])
def test_a_carry_holds_the_last_tokens_of_each_sequence(window: int) -> None:
    slots, counts = window - 1, torch.tensor([0, 2, 5])
    keys, values = drawn(3, slots + 5, GROUPS, WIDTH), drawn(3, slots + 5, GROUPS, WIDTH)
    before = torch.tensor([0, 1, slots]).clamp(max=slots)
    carry = SlidingTrail(keys, values, before, slots).carry(counts)
    for row, count in enumerate(counts.tolist()):
        assert torch.equal(carry.keys[row], keys[row, count : count + slots])
        assert torch.equal(carry.values[row], values[row, count : count + slots])
    assert torch.equal(carry.lengths, (before + counts).clamp(max=slots))
    whole = SlidingTrail(keys, values, before, slots).carry()
    assert torch.equal(whole.keys, keys[:, 5:])
    chosen = carry.select(torch.tensor([2, 0]))
    assert torch.equal(chosen.keys, carry.keys[[2, 0]]) and chosen.by_sequence is chosen.keys


@pytest.mark.parametrize("piece", [3, 50, 200, 1000])
@pytest.mark.parametrize("pads", [False, True])
def test_a_stream_gives_the_same_in_pieces_of_any_length(piece: int, pads: bool) -> None:
    parameters = EXPLICIT_SLIDING.replace(sliding_window=30, pad_window=pads)
    model, text = our_model(parameters), tokens(2, 2000)
    with torch.no_grad():
        whole, cache, found = model(text, use_cache=False).logits, model.initial_cache(2), []
        for part in text.split(piece, dim=1):
            output = model(part, cache=cache, use_cache=True)
            found.append(output.logits)
            cache = output.cache
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rope", [True, False])
def test_a_padded_window_is_one_behind_tokens_of_no_key_and_no_value(rope: bool) -> None:
    """Beside torch's attention over zeros that stand before the text."""
    model = our_model(EXPLICIT_PADDED.replace(rope=rope))
    mixer = model.model.stack.mixers[0]
    hidden, window = drawn(2, 8, 16), 2
    with torch.no_grad():
        weights = mixer.weights()
        found, _ = mixer(hidden, None, None, weights, mixer.positions(None, 8))
        parts = [hidden @ weight.T for weight in (weights.queries, weights.keys, weights.values)]
        queries, keys, values = (part.unflatten(2, (-1, 4)) for part in parts)
        keys, values = (F.pad(each, (0, 0, 0, 0, window - 1, 0)) for each in (keys, values))
        cosine, sine = mixer.rotary.angles(torch.arange(8 + window - 1)[None], hidden.dtype)
        queries = rotate(queries, cosine[:, window - 1 :], sine[:, window - 1 :])
        every = torch.tensor([window - 1] * 2)
        expected = square(queries, rotate(keys, cosine, sine), values, window, every)
    torch.testing.assert_close(found, expected.flatten(2) @ weights.output.T)


def test_a_carry_after_padding_is_that_of_the_last_token() -> None:
    """Of an implicit model: tests/language_models/test_padding.py."""
    model, text = our_model(EXPLICIT_SLIDING), tokens(3, 12)
    mask = torch.arange(12) < torch.tensor([[12], [3], [7]])
    with torch.no_grad():
        together = model(text, attention_mask=mask, use_cache=True).cache.carry
        for row, length in enumerate((12, 3, 7)):
            alone = model(text[row : row + 1, :length], use_cache=True).cache.carry
            for ours, theirs in zip(together.blocks, alone.blocks, strict=True):
                assert isinstance(ours, SlidingCarry)
                assert ours.lengths[row] == min(length, 4)
                torch.testing.assert_close(ours.keys[row], theirs.keys[0], rtol=0, atol=1e-12)


def test_positions_do_not_grow_with_the_stream() -> None:
    model, text = our_model(EXPLICIT_SLIDING), tokens(1, 6)
    mixer = model.model.stack.mixers[0]
    with torch.no_grad():
        cache = model.initial_cache(1)
        for _ in range(50):
            cache = model(text, cache=cache, use_cache=True).cache
        assert cache.carry is not None
        first = mixer.positions(mixer.initial_carry(1), 6)
        last = mixer.positions(cache.carry.blocks[0], 6)
    assert torch.equal(first.cosine, last.cosine) and torch.equal(first.sine, last.sine)
