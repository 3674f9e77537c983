"""Comparing a fused kernel with its reference twin: values, gradients and theirs."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from implicit_models.kernels.native import kernels as native
from tests.kernels.interpreter import do_no_more_than_is_needed

do_no_more_than_is_needed()

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTHS = (1, 2, 3, 7, 17, 33)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed + 1000 * sum(shape) + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what torch allocates with NaN, so that an element which no kernel writes shows."""
    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (Tensor, "new_empty"),
        (Tensor, "new_empty_strided"),
    ):
        original = getattr(owner, name)

        def poisoned(*args: Any, _original: Callable[..., Tensor] = original, **kwargs: Any) -> Any:
            allocated = _original(*args, **kwargs)
            return allocated.fill_(torch.nan) if allocated.is_floating_point() else allocated

        monkeypatch.setattr(owner, name, poisoned)
    # What the C kernels keep for the next pass would hold what the last one wrote.
    monkeypatch.setattr(native, "_LARGEST_WORKSPACE", 0)


def assert_near(found: Any, expected: Any, tolerance: float, floor: float = 0.0) -> None:
    """Compare tensors in shape, dtype and value, relative to the largest finite one expected.

    Relative to `floor` where that is larger: what is zero but for rounding has no size of its own.
    """
    if expected is None or found is None:
        assert found is expected
        return
    sizes = expected.detach().double().abs()
    sizes = sizes[sizes.isfinite()]
    largest = sizes.max().item() if sizes.numel() else 0.0
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=tolerance * max(largest, floor), equal_nan=True
    )


def assert_twins(
    fused: Callable[..., Any],
    twin: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    tolerance: float = 1e-5,
    second: bool = False,
    floor: float = 0.0,
    **options: Any,
) -> None:
    """Compare the outputs of two functions, and the gradients of every floating-point input.

    With ``second`` also the gradients of a sum of the gradients.
    """
    found = _differentiated(fused, inputs, second, options)
    expected = _differentiated(twin, inputs, second, options)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, tolerance, floor)


def _differentiated(
    function: Callable[..., Any], inputs: Sequence[Any], second: bool, options: dict[str, Any]
) -> list[Tensor | None]:
    """Return a function's outputs, gradients and, if asked, second derivatives, in a row."""
    # Not clones: the strides belong to the test.
    inputs = [x.detach().requires_grad_() if _is_float(x) else x for x in inputs]
    leaves = [x for x in inputs if _is_float(x)]
    outputs = function(*inputs, **options)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    flowing = [output for output in outputs if output is not None]
    upstream = [
        draw(*output.shape, seed=i, dtype=output.dtype).to(output.device).requires_grad_()
        for i, output in enumerate(flowing)
    ]
    gradients = torch.autograd.grad(
        flowing, leaves, upstream, create_graph=second, allow_unused=True
    )
    results = [*outputs, *gradients]
    if second:
        present = [gradient for gradient in gradients if gradient is not None]
        total = torch.stack(
            [(g * draw(*g.shape, seed=9, dtype=g.dtype).to(g.device)).sum() for g in present]
        ).sum()
        results += torch.autograd.grad(total, [*leaves, *upstream], allow_unused=True)
    return [None if x is None else x.detach() for x in results]


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
