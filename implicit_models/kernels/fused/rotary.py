"""Rotary positions in one pass over queries or keys, before torch's attention."""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from implicit_models.kernels import reference
from implicit_models.kernels.double_backward import backward_needs_twin, transformed
from implicit_models.kernels.fused.launch import accumulation_type, block_size, num_blocks

_TILE = 1024  # pairs that one program rotates


def causal_attention(
    queries: Float[Tensor, "B L H P"],
    keys: Float[Tensor, "B L G P"],
    values: Float[Tensor, "B L G P"],
    cosine: Float[Tensor, "1 L 1 P"],
    sine: Float[Tensor, "1 L 1 P"],
) -> Float[Tensor, "B L H P"]:
    """Attend to all tokens so far, as `reference.causal_attention`."""
    queries, keys = rotate(queries, cosine, sine), rotate(keys, cosine, sine)
    return reference.attend(queries, keys, values)


def rotate(
    heads: Float[Tensor, "B L H P"],
    cosine: Float[Tensor, "#B L 1 P"],
    sine: Float[Tensor, "#B L 1 P"],
) -> Float[Tensor, "B L H P"]:
    """Rotate the pairs (i, i + P/2) of each head as `reference.rotate`."""
    if transformed() or any(_takes_twin(angles, heads) for angles in (cosine, sine)):
        return reference.rotate(heads, cosine, sine)
    return _Rotation.apply(heads, cosine, sine)


def _takes_twin(angles: Tensor, heads: Tensor) -> bool:
    """Return whether angles have a gradient, another dtype, or sizes that are not the tokens'."""
    batch, length, _, width = heads.shape
    sizes = {(size, length, 1, width) for size in (1, batch)}
    return angles.requires_grad or angles.dtype != heads.dtype or tuple(angles.shape) not in sizes


class _Rotation(torch.autograd.Function):
    """A rotation, whose gradient is rotated back: nothing but the angles is kept."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _rotated(heads, cosine, sine, back=False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cosine, sine = ctx.saved_tensors
        if backward_needs_twin(gradient):
            first, second = sine.chunk(2, dim=-1)
            back = torch.cat((-second, -first), dim=-1)
            return reference.rotate(gradient, cosine, back), None, None
        return _rotated(gradient, cosine, sine, back=True), None, None


def _rotated(heads: Tensor, cosine: Tensor, sine: Tensor, *, back: bool) -> Tensor:
    outputs = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
    batch, length, num_heads, width = heads.shape
    rows, columns = batch * length * num_heads, block_size(width // 2)
    if outputs.numel():
        tile = max(1, _TILE // columns)
        _rotate[num_blocks(rows, tile),](
            heads,
            cosine,
            sine,
            outputs,
            rows,
            length,
            num_heads,
            width // 2,
            *heads.stride(),
            *_token_strides(cosine, batch),
            *_token_strides(sine, batch),
            BACK=back,
            PRECISE=accumulation_type(heads.dtype),
            ROWS=tile,
            COLUMNS=columns,
        )
    return outputs


def _token_strides(angles: Tensor, batch: int) -> tuple[int, ...]:
    sequence, token, _, number = angles.expand(batch, -1, -1, -1).stride()
    return sequence, token, number


@triton.jit
@no_type_check
def _rotate(
    heads,
    cosine,
    sine,
    outputs,
    rows,
    length,
    num_heads,
    half,
    heads_batch,
    heads_token,
    heads_head,
    heads_number,
    cosine_batch,
    cosine_token,
    cosine_number,
    sine_batch,
    sine_token,
    sine_number,
    BACK: tl.constexpr,
    PRECISE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    number = tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows)[:, None] & (number < half)
    token = row // num_heads
    batch, place, head = token // length, token % length, row % num_heads

    at = (batch * heads_batch + place * heads_token + head * heads_head)[:, None]
    first = tl.load(heads + at + number * heads_number, mask, other=0.0).to(PRECISE)
    second = tl.load(heads + at + (number + half) * heads_number, mask, other=0.0).to(PRECISE)
    at = cosine + (batch * cosine_batch + place * cosine_token)[:, None]
    cosine_first = tl.load(at + number * cosine_number, mask, other=0.0).to(PRECISE)
    cosine_second = tl.load(at + (number + half) * cosine_number, mask, other=0.0).to(PRECISE)
    at = sine + (batch * sine_batch + place * sine_token)[:, None]
    sine_first = tl.load(at + number * sine_number, mask, other=0.0).to(PRECISE)
    sine_second = tl.load(at + (number + half) * sine_number, mask, other=0.0).to(PRECISE)
    if BACK:
        one = first * cosine_first + second * sine_second
        other = second * cosine_second - first * sine_first
    else:
        one = first * cosine_first - second * sine_first
        other = second * cosine_second + first * sine_second

    at = outputs + row[:, None] * (2 * half) + number
    tl.store(at, one.to(outputs.dtype.element_ty), mask)
    tl.store(at + half, other.to(outputs.dtype.element_ty), mask)
