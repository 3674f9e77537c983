"""The matrix products that a computation makes, and the time they alone would take."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.baddbmm.default,
)


class MatrixProducts(TorchDispatchMode):
    """Lists the products made within its block, of any function and its backward pass.

    torch sees only its own: a kernel in C or Triton shows none, so run the reference's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, list[tuple[Any, ...]]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        """Take note of an operation and make it."""
        if function in _PRODUCTS:
            operands = [x for x in args if isinstance(x, Tensor)]
            self.calls.append((function, [(x.shape, x.stride(), x.dtype) for x in operands]))
        return function(*args, **(kwargs or {}))

    def replay(self) -> Callable[[], None]:
        """Return a function that computes them again, on new numbers in the same tensors."""
        operands: dict[Any, Tensor] = {}
        calls = []
        for function, layouts in self.calls:
            keys = list(enumerate(layouts))
            for position, (shape, stride, dtype) in keys:
                if (position, (shape, stride, dtype)) in operands:
                    continue
                extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
                numbers = torch.randn(max(extent, 1)).to(dtype)
                operands[position, (shape, stride, dtype)] = numbers.as_strided(shape, stride)
            calls.append((function, [operands[key] for key in keys]))

        @torch.no_grad()
        def make_again() -> None:
            for function, tensors in calls:
                function(*tensors)

        return make_again
