"""Activations within kernels, right at both ends of their range."""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def sigmoid(x):
    """Return ``1 / (1 + exp(-x))`` without an exponential that can overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
@no_type_check
def softplus(x):
    """Return ``log(1 + exp(x))``, which for a small time step is all in the digits beyond the 1.

    The error of ``1 + small`` cancels where the logarithm is divided by what was really added.
    """
    small = tl.exp(-tl.abs(x))
    more = 1.0 + small
    added = tl.where(more == 1.0, 1.0, more - 1.0)
    rest = tl.where(more == 1.0, small, tl.log(more) * small / added)
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) + rest
