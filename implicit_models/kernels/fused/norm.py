"""The root-mean-square norms in one pass over a row, and their gradients in another."""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from implicit_models.kernels import reference
from implicit_models.kernels.double_backward import backward_needs_twin, transformed, twin_gradients
from implicit_models.kernels.fused.activations import sigmoid
from implicit_models.kernels.fused.launch import accumulation_type, block_size, num_blocks
from implicit_models.kernels.reference import accumulation_dtype

# Numbers that one program holds at a time, and programs that share out the weight's gradient.
TILE, MOST_STRIPS = 2048, 512


def gated_rms_norm(
    inputs: Float[Tensor, "*rows D"],
    gate: Float[Tensor, "*rows D"],
    weight: Float[Tensor, " D"],
    epsilon: float,
    num_groups: int = 1,
) -> Float[Tensor, "*rows D"]:
    """Normalise ``inputs * silu(gate)`` group by group, as `reference.gated_rms_norm`."""
    if transformed():
        return reference.gated_rms_norm(inputs, gate, weight, epsilon, num_groups)
    return _Norm.apply(inputs, gate, weight, epsilon, num_groups)


def rms_norm(
    hidden: Float[Tensor, "*rows D"], weight: Float[Tensor, " D"], epsilon: float
) -> Float[Tensor, "*rows D"]:
    """Normalise ``hidden``, into the dtype of ``weight``, as `reference.rms_norm`."""
    if transformed():
        return reference.rms_norm(hidden, weight, epsilon)
    return _Norm.apply(hidden, None, weight, epsilon, 1)


class _Norm(torch.autograd.Function):
    """Both norms: the plain one has no gate, and another dtype for its outputs."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        gate: Tensor | None,
        weight: Tensor,
        epsilon: float,
        num_groups: int,
    ) -> Tensor:
        width = inputs.shape[-1]
        rows, gate_rows = _rows(inputs), None if gate is None else _rows(gate)
        outputs = torch.empty(
            inputs.shape,
            dtype=weight.dtype if gate is None else inputs.dtype,
            device=inputs.device,
        )
        scales = torch.empty(
            (len(rows), num_groups), dtype=accumulation_dtype(inputs.dtype), device=inputs.device
        )
        if inputs.numel():
            sizes = _sizes(width // num_groups)
            _norm[num_blocks(len(rows), sizes["ROWS"]), num_groups](
                rows,
                gate_rows,
                weight.contiguous(),
                outputs,
                scales,
                len(rows),
                width // num_groups,
                *rows.stride(),
                *((0, 0) if gate_rows is None else gate_rows.stride()),
                EPSILON=epsilon,
                PRECISE=accumulation_type(inputs.dtype),
                **sizes,
            )
        ctx.save_for_backward(inputs, gate, weight, scales)
        ctx.epsilon, ctx.num_groups = epsilon, num_groups
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, gate, weight, scales = ctx.saved_tensors
        if backward_needs_twin(gradient):
            return twin_gradients(
                _twin,
                (inputs, gate, weight, ctx.epsilon, ctx.num_groups),
                ctx.needs_input_grad,
                (gradient,),
            )
        width, num_groups = inputs.shape[-1], ctx.num_groups
        rows, upstream = _rows(inputs), _rows(gradient)
        gate_rows = None if gate is None else _rows(gate)
        by_inputs, by_gate = (
            None if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
            for x in (inputs, gate)
        )
        sizes = _sizes(width // num_groups)
        tiles = num_blocks(len(rows), sizes["ROWS"])
        tiles_per_strip = num_blocks(tiles, MOST_STRIPS)
        strips = num_blocks(tiles, tiles_per_strip) if tiles else 0
        by_weight = torch.empty((strips, width), dtype=scales.dtype, device=inputs.device)
        if inputs.numel():
            _differentiate[strips, num_groups](
                rows,
                gate_rows,
                weight.contiguous(),
                scales,
                upstream,
                by_inputs,
                by_gate,
                by_weight,
                len(rows),
                width // num_groups,
                tiles_per_strip,
                *rows.stride(),
                *((0, 0) if gate_rows is None else gate_rows.stride()),
                *upstream.stride(),
                PRECISE=accumulation_type(inputs.dtype),
                **sizes,
            )
        return by_inputs, by_gate, by_weight.sum(0).to(weight.dtype), None, None


def _twin(
    inputs: Tensor, gate: Tensor | None, weight: Tensor, epsilon: float, num_groups: int
) -> Tensor:
    if gate is None:
        return reference.rms_norm(inputs, weight, epsilon)
    return reference.gated_rms_norm(inputs, gate, weight, epsilon, num_groups)


def _rows(tensor: Tensor) -> Tensor:
    """View a tensor as rows; a slice of the last dimension needs no copy for that."""
    return tensor.reshape(tensor.shape[:-1].numel(), tensor.shape[-1])


def _sizes(width: int) -> dict[str, int]:
    """Return a tile's rows, its columns (a whole group of a row) and the warps that hold it."""
    columns = block_size(width)
    rows = max(1, TILE // columns)
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": min(16, max(4, rows * columns // 512))}


@triton.jit
@no_type_check
def _norm(
    inputs,
    gate,
    weight,
    outputs,
    scales,
    num_rows,
    width,
    inputs_row,
    inputs_column,
    gate_row,
    gate_column,
    EPSILON: tl.constexpr,
    PRECISE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    group, num_groups = tl.program_id(1), tl.num_programs(1)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    exists = column < width
    mask = (row < num_rows)[:, None] & exists[None, :]
    column += group * width

    at = inputs + row[:, None] * inputs_row + column[None, :] * inputs_column
    values = tl.load(at, mask, other=0.0).to(PRECISE)
    if gate is not None:
        at = gate + row[:, None] * gate_row + column[None, :] * gate_column
        opening = tl.load(at, mask, other=0.0).to(PRECISE)
        values *= opening * sigmoid(opening)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 1) / width + EPSILON)
    tl.store(scales + row * num_groups + group, scale, row < num_rows)

    factor = tl.load(weight + column, exists, other=0.0).to(PRECISE)
    normed = values * scale[:, None] * factor[None, :]
    at = outputs + row[:, None] * (num_groups * width) + column[None, :]
    tl.store(at, normed.to(outputs.dtype.element_ty), mask)


@triton.jit
@no_type_check
def _differentiate(
    inputs,
    gate,
    weight,
    scales,
    gradient,
    by_inputs,
    by_gate,
    by_weight,
    num_rows,
    width,
    tiles_per_strip,
    inputs_row,
    inputs_column,
    gate_row,
    gate_column,
    gradient_row,
    gradient_column,
    PRECISE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Differentiate by a strip of rows, adding up what they contribute to the weight's gradient.

    With ``v = inputs * silu(gate)`` and its scale s, a row's ``dv = s u - s^3 mean(u v) v``,
    where u is the incoming gradient times the weight.
    """
    strip, group, num_groups = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column = tl.arange(0, COLUMNS)
    exists = column < width
    column += group * width
    factor = tl.load(weight + column, exists, other=0.0).to(PRECISE)
    sums = tl.zeros((ROWS, COLUMNS), PRECISE)

    for tile in range(0, tiles_per_strip):
        row = (strip * tiles_per_strip + tile).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        mask = (row < num_rows)[:, None] & exists[None, :]
        at = inputs + row[:, None] * inputs_row + column[None, :] * inputs_column
        read = tl.load(at, mask, other=0.0).to(PRECISE)
        values = read
        if gate is not None:
            at = gate + row[:, None] * gate_row + column[None, :] * gate_column
            opening = tl.load(at, mask, other=0.0).to(PRECISE)
            share = sigmoid(opening)
            values = read * opening * share
        at = gradient + row[:, None] * gradient_row + column[None, :] * gradient_column
        upstream = tl.load(at, mask, other=0.0).to(PRECISE)
        scale = tl.load(scales + row * num_groups + group, row < num_rows, other=0.0)[:, None]

        normed = values * scale
        sums += upstream * normed
        upstream *= factor[None, :]
        mean = tl.sum(upstream * normed, 1)[:, None] / width
        by_values = (upstream - mean * normed) * scale
        at = row[:, None] * (num_groups * width) + column[None, :]
        if gate is not None:
            by_opening = by_values * read * share * (1.0 + opening * (1.0 - share))
            tl.store(by_gate + at, by_opening.to(by_gate.dtype.element_ty), mask)
            by_values *= opening * share
        tl.store(by_inputs + at, by_values.to(by_inputs.dtype.element_ty), mask)

    at = by_weight + strip.to(tl.int64) * (num_groups * width) + column
    tl.store(at, tl.sum(sums, 0), exists)
