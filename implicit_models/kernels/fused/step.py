"""One token through a Mamba2 block between its projections: a pass over the state, and a norm."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from implicit_models.kernels import reference
from implicit_models.kernels.double_backward import needs_gradient, transformed
from implicit_models.kernels.fused.activations import sigmoid, softplus
from implicit_models.kernels.fused.launch import accumulation_type, block_size, num_blocks
from implicit_models.kernels.fused.norm import gated_rms_norm

# Rows of a head's state that one program holds: few, so that one sequence keeps a GPU busy.
MOST_ROWS = 16


def mixer_step(
    projected: Float[Tensor, "B projection"],
    convolution: Float[Tensor, "C K"],
    convolution_bias: Float[Tensor, " C"],
    time_step_bias: Float[Tensor, " H"],
    decay_rate: Float[Tensor, " H"],
    skip: Float[Tensor, " H"],
    norm: Float[Tensor, " inner"],
    epsilon: float,
    tail: Float[Tensor, "B K-1 C"],
    state: Float[Tensor, "B H P N"],
    num_groups: int,
) -> Float[Tensor, "B inner"]:
    """Take a token through a block as `reference.mixer_step`; by the twin for a gradient."""
    weights = (convolution, convolution_bias, time_step_bias, decay_rate, skip, norm)
    if transformed() or needs_gradient(projected, *weights, tail, state):
        return reference.mixer_step(projected, *weights, epsilon, tail, state, num_groups)
    batch, heads, width, size = state.shape
    mixed = torch.empty((batch, heads * width), dtype=projected.dtype, device=projected.device)
    if mixed.numel():
        rows = block_size(width, MOST_ROWS)
        _step[batch, heads, num_blocks(width, rows)](
            projected,
            convolution,
            convolution_bias.contiguous(),
            time_step_bias.contiguous(),
            decay_rate.contiguous(),
            skip.contiguous(),
            tail,
            state,
            mixed,
            width,
            size,
            heads // num_groups,
            num_groups,
            *projected.stride(),
            *convolution.stride(),
            *tail.stride(),
            *state.stride(),
            TAPS=convolution.shape[1],
            PRECISE=accumulation_type(projected.dtype),
            ROWS=rows,
            COLUMNS=block_size(size),
        )
    return gated_rms_norm(mixed, projected[:, : heads * width], norm, epsilon, num_groups)


@triton.jit
@no_type_check
def _convolved(
    projected,
    convolution,
    bias,
    tail,
    first,
    channel,
    mask,
    projected_column,
    convolution_channel,
    convolution_tap,
    tail_token,
    tail_channel,
    TAPS: tl.constexpr,
    PRECISE: tl.constexpr,
):
    """Return some channels of the convolution's last token, rounded as it stores them."""
    total = tl.load(bias + channel, mask, other=0.0).to(PRECISE)
    weights = convolution + channel * convolution_channel
    for tap in tl.static_range(TAPS):
        if tap == TAPS - 1:
            at = projected + (first + channel) * projected_column
        else:
            at = tail + tap * tail_token + channel * tail_channel
        factor = tl.load(weights + tap * convolution_tap, mask, other=0.0).to(PRECISE)
        total += factor * tl.load(at, mask, other=0.0).to(PRECISE)
    return (total * sigmoid(total)).to(projected.dtype.element_ty).to(PRECISE)


@triton.jit
@no_type_check
def _step(
    projected,
    convolution,
    convolution_bias,
    time_step_bias,
    decay_rate,
    skip,
    tail,
    state,
    mixed,
    width,
    size,
    heads_per_group,
    num_groups,
    projected_row,
    projected_column,
    convolution_channel,
    convolution_tap,
    tail_row,
    tail_token,
    tail_channel,
    state_batch,
    state_head,
    state_row,
    state_column,
    TAPS: tl.constexpr,
    PRECISE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Advance some rows of a head's state, unseen, and read its outputs.

    ``projected`` is gate, inputs, B, C and time step; all but gate and time step are convolved.
    """
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads = tl.num_programs(1)
    inner = heads * width
    maps = num_groups * size
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    in_row, in_column = row < width, column < size
    projected += batch * projected_row
    tail += batch * tail_row

    channel = head * width + row
    inputs = _convolved(
        projected, convolution, convolution_bias, tail, inner, channel, in_row,
        projected_column, convolution_channel, convolution_tap, tail_token, tail_channel,
        TAPS, PRECISE,
    )  # fmt: skip
    channel_of_map = inner + head // heads_per_group * size + column
    input_map = _convolved(
        projected, convolution, convolution_bias, tail, inner, channel_of_map, in_column,
        projected_column, convolution_channel, convolution_tap, tail_token, tail_channel,
        TAPS, PRECISE,
    )  # fmt: skip
    output_map = _convolved(
        projected, convolution, convolution_bias, tail, inner, channel_of_map + maps, in_column,
        projected_column, convolution_channel, convolution_tap, tail_token, tail_channel,
        TAPS, PRECISE,
    )  # fmt: skip

    raw = tl.load(projected + (2 * inner + 2 * maps + head) * projected_column).to(PRECISE)
    time_step = softplus(raw + tl.load(time_step_bias + head).to(PRECISE))
    decay = tl.exp(time_step * tl.load(decay_rate + head).to(PRECISE))
    at = state + batch * state_batch + head * state_head
    at += row[:, None] * state_row + column[None, :] * state_column
    before = tl.load(at, in_row[:, None] & in_column[None, :], other=0.0).to(PRECISE)
    after = decay * before + (time_step * inputs)[:, None] * input_map[None, :]
    outputs = tl.sum(after * output_map[None, :], 1)
    outputs += tl.load(skip + head).to(PRECISE) * inputs
    at = mixed + batch * inner + channel
    tl.store(at, outputs.to(mixed.dtype.element_ty), in_row)
