"""The gate of a feed-forward network in one pass, and its gradients in another."""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from implicit_models.kernels import reference
from implicit_models.kernels.double_backward import backward_needs_twin, transformed, twin_gradients
from implicit_models.kernels.fused.activations import sigmoid
from implicit_models.kernels.fused.launch import accumulation_type, num_blocks

_BLOCK = 1024


def swiglu(gate: Float[Tensor, "*rows I"], up: Float[Tensor, "*rows I"]) -> Tensor:
    """Return ``silu(gate) * up`` as `reference.swiglu`; without a gradient in the gate's memory."""
    if transformed() or gate.dtype != up.dtype or gate.shape != up.shape:
        return reference.swiglu(gate, up)
    if torch.is_grad_enabled():
        return _SwiGLU.apply(gate, up)
    gate = gate.contiguous()
    torch.autograd.graph.increment_version(gate)
    return _gated(gate, up.contiguous(), gate)


def _gated(gate: Tensor, up: Tensor, outputs: Tensor) -> Tensor:
    if gate.numel():
        _gate[num_blocks(gate.numel(), _BLOCK),](
            gate,
            up,
            outputs,
            gate.numel(),
            PRECISE=accumulation_type(gate.dtype),
            BLOCK=_BLOCK,
        )
    return outputs


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        gate = gate.contiguous()
        return _gated(gate, up.contiguous(), torch.empty_like(gate))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        if backward_needs_twin(gradient):
            return twin_gradients(reference.swiglu, (gate, up), ctx.needs_input_grad, (gradient,))
        gate, up = gate.contiguous(), up.contiguous()
        by_gate, by_up = torch.empty_like(gate), torch.empty_like(up)
        if gate.numel():
            _differentiate[num_blocks(gate.numel(), _BLOCK),](
                gate,
                up,
                gradient.contiguous(),
                by_gate,
                by_up,
                gate.numel(),
                PRECISE=accumulation_type(gate.dtype),
                BLOCK=_BLOCK,
            )
        return by_gate, by_up


@triton.jit
@no_type_check
def _gate(gate, up, outputs, size, PRECISE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    opening = tl.load(gate + at, mask, other=0.0).to(PRECISE)
    values = tl.load(up + at, mask, other=0.0).to(PRECISE)
    tl.store(outputs + at, (opening * sigmoid(opening) * values).to(gate.dtype.element_ty), mask)


@triton.jit
@no_type_check
def _differentiate(
    gate, up, gradient, by_gate, by_up, size, PRECISE: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    opening = tl.load(gate + at, mask, other=0.0).to(PRECISE)
    values = tl.load(up + at, mask, other=0.0).to(PRECISE)
    upstream = tl.load(gradient + at, mask, other=0.0).to(PRECISE)
    share = sigmoid(opening)
    by_opening = upstream * values * share * (1.0 + opening * (1.0 - share))
    tl.store(by_gate + at, by_opening.to(gate.dtype.element_ty), mask)
    tl.store(by_up + at, (upstream * opening * share).to(gate.dtype.element_ty), mask)
