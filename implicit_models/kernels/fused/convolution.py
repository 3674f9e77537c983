"""Mamba2's short convolution in one pass over its inputs, and its gradients in two."""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from implicit_models.kernels import reference
from implicit_models.kernels.double_backward import backward_needs_twin, transformed, twin_gradients
from implicit_models.kernels.fused.activations import sigmoid
from implicit_models.kernels.fused.launch import (
    accumulation_type,
    block_size,
    configurations,
    num_blocks,
    tuned,
)
from implicit_models.kernels.reference import accumulation_dtype

# Tokens whose contributions to the weights' gradients one program adds up.
STRIP = 128
_TILES = (
    {"TOKENS": 16, "CHANNELS": 64},
    {"TOKENS": 32, "CHANNELS": 64},
    {"TOKENS": 16, "CHANNELS": 128},
    {"TOKENS": 64, "CHANNELS": 64},
)


def causal_convolution(
    inputs: Float[Tensor, "B L C"],
    weight: Float[Tensor, "C K"],
    bias: Float[Tensor, " C"],
    carry: Float[Tensor, "B K-1 C"] | None = None,
) -> Float[Tensor, "B L C"]:
    """Convolve and apply SiLU as `reference.causal_convolution`, in the dtype of ``inputs``."""
    if transformed():
        return reference.causal_convolution(inputs, weight, bias, carry)
    return _CausalConvolution.apply(inputs, weight, bias, carry)


class _CausalConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, carry: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight, bias, carry)
        outputs = torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)
        batch, length, channels = inputs.shape
        if not inputs.numel():
            return outputs

        def grid(meta: dict[str, Any]) -> tuple[int, int]:
            tiles = num_blocks(length, meta["TOKENS"])
            return batch * tiles, num_blocks(channels, meta["CHANNELS"])

        _convolve[grid](
            inputs,
            weight,
            bias.contiguous(),
            carry,
            outputs,
            length,
            channels,
            *inputs.stride(),
            *weight.stride(),
            *_strides(carry),
            WIDTH=weight.shape[1],
            PRECISE=accumulation_type(inputs.dtype),
        )
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, carry = ctx.saved_tensors
        if backward_needs_twin(gradient):
            return twin_gradients(
                reference.causal_convolution,
                (inputs, weight, bias, carry),
                ctx.needs_input_grad,
                (gradient,),
            )
        batch, length, channels = inputs.shape
        width, precise = weight.shape[1], accumulation_dtype(inputs.dtype)
        past = 0 if carry is None else width - 1
        strips = num_blocks(length, STRIP)
        by_inputs, by_carry = (
            None if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
            for x in (inputs, carry)
        )
        # Of what SiLU takes, and of taps and bias by each strip.
        by_totals, by_weights = (
            torch.empty(shape, dtype=precise, device=inputs.device)
            for shape in (inputs.shape, (batch * strips, width + 1, channels))
        )

        def strip_grid(meta: dict[str, Any]) -> tuple[int, int]:
            return batch * strips, num_blocks(channels, meta["CHANNELS"])

        def grid(meta: dict[str, Any]) -> tuple[int, int]:
            tiles = num_blocks(length + past, meta["TOKENS"])
            return batch * tiles, num_blocks(channels, meta["CHANNELS"])

        if by_weights.numel():
            _differentiate_weights[strip_grid](
                inputs,
                weight,
                bias.contiguous(),
                carry,
                gradient,
                by_totals,
                by_weights,
                length,
                channels,
                *inputs.stride(),
                *weight.stride(),
                *_strides(carry),
                *gradient.stride(),
                WIDTH=width,
                ROWS=block_size(width + 1),
                STRIP=STRIP,
                PRECISE=accumulation_type(inputs.dtype),
            )
        if batch * (length + past) * channels:
            _differentiate_inputs[grid](
                weight,
                by_totals,
                by_inputs,
                by_carry,
                length,
                channels,
                *weight.stride(),
                WIDTH=width,
                PAST=past,
                PRECISE=accumulation_type(inputs.dtype),
            )
        by_weights = by_weights.sum(0)
        by_weight = by_weights[:width].t().to(weight.dtype)
        return by_inputs, by_weight, by_weights[width].to(bias.dtype), by_carry


def _strides(carry: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0) if carry is None else carry.stride()


@triton.jit
@no_type_check
def _read(
    inputs,
    carry,
    batch,
    tokens,
    channel,
    mask,
    inputs_batch,
    inputs_token,
    inputs_channel,
    carry_batch,
    carry_token,
    carry_channel,
    WIDTH: tl.constexpr,
    PRECISE: tl.constexpr,
):
    """Read tokens by their positions: the negative ones lie in the carry, or are zero."""
    at = inputs + batch * inputs_batch
    at += tokens[:, None] * inputs_token + channel[None, :] * inputs_channel
    values = tl.load(at, mask & (tokens >= 0)[:, None], other=0.0).to(PRECISE)
    if carry is not None:
        row = tokens + (WIDTH - 1)
        at = carry + batch * carry_batch
        at += row[:, None] * carry_token + channel[None, :] * carry_channel
        past = mask & ((tokens < 0) & (row >= 0))[:, None]
        values += tl.load(at, past, other=0.0).to(PRECISE)
    return values


@triton.jit
@no_type_check
def _total(
    inputs,
    weight,
    bias,
    carry,
    batch,
    tokens,
    channel,
    exists,
    mask,
    inputs_batch,
    inputs_token,
    inputs_channel,
    weight_channel,
    weight_tap,
    carry_batch,
    carry_token,
    carry_channel,
    WIDTH: tl.constexpr,
    PRECISE: tl.constexpr,
):
    """Convolve a tile: what SiLU takes."""
    total = tl.zeros(mask.shape, PRECISE)
    total += tl.load(bias + channel, exists, other=0.0).to(PRECISE)[None, :]
    for tap in tl.static_range(WIDTH):
        at = weight + channel * weight_channel + tap * weight_tap
        factor = tl.load(at, exists, other=0.0).to(PRECISE)
        total += factor[None, :] * _read(
            inputs,
            carry,
            batch,
            tokens + (tap - (WIDTH - 1)),
            channel,
            mask,
            inputs_batch,
            inputs_token,
            inputs_channel,
            carry_batch,
            carry_token,
            carry_channel,
            WIDTH,
            PRECISE,
        )
    return total


@tuned(configurations(*_TILES), key=("channels", "WIDTH"))
@triton.jit
@no_type_check
def _convolve(
    inputs,
    weight,
    bias,
    carry,
    outputs,
    length,
    channels,
    inputs_batch,
    inputs_token,
    inputs_channel,
    weight_channel,
    weight_tap,
    carry_batch,
    carry_token,
    carry_channel,
    WIDTH: tl.constexpr,
    PRECISE: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    tiles = tl.cdiv(length, TOKENS)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tokens = (tl.program_id(0) % tiles).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    mask = (tokens < length)[:, None] & exists[None, :]

    total = _total(
        inputs,
        weight,
        bias,
        carry,
        batch,
        tokens,
        channel,
        exists,
        mask,
        inputs_batch,
        inputs_token,
        inputs_channel,
        weight_channel,
        weight_tap,
        carry_batch,
        carry_token,
        carry_channel,
        WIDTH,
        PRECISE,
    )
    at = outputs + (batch * length + tokens)[:, None] * channels + channel[None, :]
    tl.store(at, (total * sigmoid(total)).to(outputs.dtype.element_ty), mask)


@tuned(configurations(*_TILES, warps=(4, 8)), key=("channels", "WIDTH"))
@triton.jit
@no_type_check
def _differentiate_weights(
    inputs,
    weight,
    bias,
    carry,
    gradient,
    by_totals,
    by_weights,
    length,
    channels,
    inputs_batch,
    inputs_token,
    inputs_channel,
    weight_channel,
    weight_tap,
    carry_batch,
    carry_token,
    carry_channel,
    gradient_batch,
    gradient_token,
    gradient_channel,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    STRIP: tl.constexpr,
    PRECISE: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Differentiate by a strip's convolved numbers, and add up what its tokens give the weights.

    Reading the inputs again, which are near, is cheaper than keeping anything from the forward.
    """
    strips = tl.cdiv(length, STRIP)
    batch = (tl.program_id(0) // strips).to(tl.int64)
    first = (tl.program_id(0) % strips) * STRIP
    channel = tl.program_id(1).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    rows = tl.arange(0, ROWS)
    sums = tl.zeros((ROWS, CHANNELS), PRECISE)  # of the taps, then of the bias

    for start in range(0, tl.minimum(STRIP, length - first), TOKENS):
        tokens = (first + start).to(tl.int64) + tl.arange(0, TOKENS)
        # A tile may be longer than a strip.
        mask = (tokens < tl.minimum(length, first + STRIP))[:, None] & exists[None, :]
        total = _total(
            inputs,
            weight,
            bias,
            carry,
            batch,
            tokens,
            channel,
            exists,
            mask,
            inputs_batch,
            inputs_token,
            inputs_channel,
            weight_channel,
            weight_tap,
            carry_batch,
            carry_token,
            carry_channel,
            WIDTH,
            PRECISE,
        )
        at = gradient + batch * gradient_batch
        at += tokens[:, None] * gradient_token + channel[None, :] * gradient_channel
        share = sigmoid(total)
        by_total = tl.load(at, mask, other=0.0).to(PRECISE)
        by_total *= share * (1.0 + total * (1.0 - share))
        at = by_totals + (batch * length + tokens)[:, None] * channels + channel[None, :]
        tl.store(at, by_total, mask)
        summed = tl.sum(by_total, 0)
        sums += tl.where(rows[:, None] == WIDTH, summed[None, :], 0.0)
        for tap in tl.static_range(WIDTH):
            values = _read(
                inputs,
                carry,
                batch,
                tokens + (tap - (WIDTH - 1)),
                channel,
                mask,
                inputs_batch,
                inputs_token,
                inputs_channel,
                carry_batch,
                carry_token,
                carry_channel,
                WIDTH,
                PRECISE,
            )
            summed = tl.sum(by_total * values, 0)
            sums += tl.where(rows[:, None] == tap, summed[None, :], 0.0)

    at = by_weights + tl.program_id(0).to(tl.int64) * (WIDTH + 1) * channels
    at += rows[:, None] * channels + channel[None, :]
    tl.store(at, sums, (rows <= WIDTH)[:, None] & exists[None, :])


@tuned(configurations(*_TILES), key=("channels", "WIDTH"))
@triton.jit
@no_type_check
def _differentiate_inputs(
    weight,
    by_totals,
    by_inputs,
    by_carry,
    length,
    channels,
    weight_channel,
    weight_tap,
    WIDTH: tl.constexpr,
    PAST: tl.constexpr,
    PRECISE: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Differentiate by a tile of tokens, the carry's before the inputs' own.

    A token acts on itself and the WIDTH - 1 after it.
    """
    tiles = tl.cdiv(length + PAST, TOKENS)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tokens = (tl.program_id(0) % tiles).to(tl.int64) * TOKENS + tl.arange(0, TOKENS) - PAST
    channel = tl.program_id(1).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    found = tl.zeros((TOKENS, CHANNELS), PRECISE)
    for ahead in tl.static_range(WIDTH):
        later = tokens + ahead
        mask = ((later >= 0) & (later < length))[:, None] & exists[None, :]
        at = by_totals + (batch * length + later)[:, None] * channels + channel[None, :]
        by_total = tl.load(at, mask, other=0.0)
        at = weight + channel * weight_channel + (WIDTH - 1 - ahead) * weight_tap
        found += tl.load(at, exists, other=0.0).to(PRECISE)[None, :] * by_total
    mask = ((tokens >= 0) & (tokens < length))[:, None] & exists[None, :]
    at = by_inputs + (batch * length + tokens)[:, None] * channels + channel[None, :]
    tl.store(at, found.to(by_inputs.dtype.element_ty), mask)
    if PAST > 0:
        mask = ((tokens < 0) & (tokens >= -PAST))[:, None] & exists[None, :]
        at = by_carry + (batch * PAST + tokens + PAST)[:, None] * channels + channel[None, :]
        tl.store(at, found.to(by_carry.dtype.element_ty), mask)
