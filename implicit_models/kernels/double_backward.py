"""Where Triton and C cannot go, the reference twin does: second derivatives and torch.func.

A kernel's backward is not itself differentiable, and no kernel is visible to a transform of
torch.func. An autograd function of a kernel therefore asks in two places::

    def causal_convolution(inputs, ...):
        if transformed():
            return reference.causal_convolution(inputs, ...)
        return _CausalConvolution.apply(inputs, ...)

    def backward(ctx, gradient):
        if backward_needs_twin(gradient):
            inputs = ctx.saved_tensors
            return twin_gradients(
                reference.causal_convolution, inputs, ctx.needs_input_grad, (gradient,)
            )
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def transformed() -> bool:
    """Return whether a transform of torch.func, or differentiation in forward mode, is at work."""
    if torch._C._are_functorch_transforms_active():
        return True
    return torch.autograd.forward_ad._current_level >= 0


def backward_needs_twin(*gradients: Tensor | None) -> bool:
    """Return whether a backward has to be differentiable (``create_graph``) or is transformed.

    ``gradients`` are what flows in, several at once under ``is_grads_batched``.
    """
    if torch.is_grad_enabled() or transformed():
        return True
    is_batched = torch._C._functorch.is_legacy_batchedtensor  # type: ignore[attr-defined]
    return any(gradient is not None and is_batched(gradient) for gradient in gradients)


def needs_gradient(*inputs: Tensor | None) -> bool:
    """Return whether autograd follows any of the inputs of a kernel that has no backward."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)


def twin_gradients(
    twin: Callable[..., Any],
    inputs: Sequence[Any],
    needed: Sequence[bool],
    gradients: Sequence[Tensor | None],
    **options: Any,
) -> tuple[Tensor | None, ...]:
    """Compute a kernel's gradients by autograd through its twin, so that they have their own.

    Parameters
    ----------
    twin
        The reference, called as ``twin(*inputs, **options)``.
    inputs
        All its positional arguments, tensors or not, as the forward saved them.
    needed
        Which of ``inputs`` want a gradient (``ctx.needs_input_grad``).
    gradients
        One for each output; None where nothing flows back.

    Returns
    -------
    one for each of ``inputs``, None where none is needed.
    """
    # Under autocast the twin would round what the kernel keeps precise.
    device = next(x.device.type for x in inputs if isinstance(x, Tensor))
    with torch.enable_grad(), torch.autocast(device, enabled=False):
        # An alias of its own for each input: one may be computed from another, or be the same.
        aliases = [x.view_as(x) if isinstance(x, Tensor) else x for x in inputs]
        outputs = twin(*aliases, **options)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        flowing = [
            (output.to(gradient.dtype), gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if output is not None and gradient is not None and output.requires_grad
        ]
        wanted = [
            n and isinstance(x, Tensor) and x.requires_grad
            for x, n in zip(aliases, needed, strict=True)
        ]
        if not flowing or not any(wanted):
            return (None,) * len(aliases)
        outputs, gradients = zip(*flowing, strict=True)
    found = iter(
        torch.autograd.grad(
            outputs,
            [x for x, w in zip(aliases, wanted, strict=True) if w],
            gradients,
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
    )
    return tuple(next(found) if w else None for w in wanted)
