"""The end of an iteration in one pass over each token: norm, damped step and residual."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from implicit_models.kernels import reference
from implicit_models.kernels.double_backward import needs_gradient, transformed
from implicit_models.kernels.fused.launch import accumulation_type, block_size
from implicit_models.kernels.reference import accumulation_dtype


def normed_update(
    hidden: Float[Tensor, "*rows D"],
    weight: Float[Tensor, " D"],
    epsilon: float,
    value: Float[Tensor, "*rows D"],
    damping: float,
) -> tuple[Float[Tensor, "*rows D"], Float[Tensor, " *rows"]]:
    """Take the step and the residual of `reference.normed_update`; by the twin for a gradient."""
    if transformed() or needs_gradient(hidden, weight, value):
        return reference.normed_update(hidden, weight, epsilon, value, damping)
    *leading, width = value.shape
    num_rows = value.shape[:-1].numel()
    precise = accumulation_dtype(value.dtype)
    following = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    residuals = torch.empty(leading, dtype=precise, device=value.device)
    if num_rows:
        hidden, value = hidden.reshape(num_rows, width), value.reshape(num_rows, width)
        columns, limits = block_size(width), torch.finfo(precise)
        launch = {"COLUMNS": columns, "num_warps": min(16, max(4, columns // 512))}
        _update[num_rows,](
            hidden,
            weight.contiguous(),
            value,
            following,
            residuals,
            width,
            *hidden.stride(),
            *value.stride(),
            EPSILON=epsilon,
            DAMPING=float(damping),
            EPS=limits.eps,
            TINY=limits.tiny,
            NORM_PRECISE=accumulation_type(hidden.dtype),
            PRECISE=accumulation_type(value.dtype),
            **launch,
        )
    return following, residuals


@triton.jit
@no_type_check
def _update(
    hidden,
    weight,
    value,
    following,
    residuals,
    width,
    hidden_row,
    hidden_column,
    value_row,
    value_column,
    EPSILON: tl.constexpr,
    DAMPING: tl.constexpr,
    EPS: tl.constexpr,
    TINY: tl.constexpr,
    NORM_PRECISE: tl.constexpr,
    PRECISE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    mask = column < width
    at = hidden + row * hidden_row + column * hidden_column
    states = tl.load(at, mask, other=0.0).to(NORM_PRECISE)
    scale = 1.0 / tl.sqrt(tl.sum(states * states, 0) / width + EPSILON)
    factor = tl.load(weight + column, mask, other=0.0)
    # The roundings of the twin: into the dtype of the weight, then of the value.
    evaluated = (states * scale * factor.to(NORM_PRECISE)).to(weight.dtype.element_ty)
    evaluated = evaluated.to(value.dtype.element_ty).to(PRECISE)
    at = value + row * value_row + column * value_column
    before = tl.load(at, mask, other=0.0).to(PRECISE)
    change = evaluated - before

    if DAMPING == 1.0:
        after = evaluated
    elif DAMPING < 0.5:
        after = before + DAMPING * change
    else:
        after = evaluated - (1.0 - DAMPING) * change
    at = following + row * width + column
    tl.store(at, after.to(following.dtype.element_ty), mask)

    size = tl.sqrt(tl.sum(evaluated * evaluated, 0))
    distance = tl.sqrt(tl.sum(change * change, 0))
    ratio = distance / tl.maximum(tl.maximum(size, distance * EPS), TINY)
    tl.store(residuals + row, tl.where(size == float("inf"), float("inf"), ratio))
