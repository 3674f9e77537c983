"""mamba-ssm's scan behind the signature of `reference`, where that package is installed.

Only `mamba_chunk_scan_combined` serves: it takes an initial state. (Its wholly fused path takes no
tail of the convolution.)
"""

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from implicit_models.kernels import reference
from implicit_models.kernels.double_backward import backward_needs_twin, transformed, twin_gradients

CHUNK_LENGTH = 256  # mamba-ssm's own choice


def state_space_scan(
    inputs: Float[Tensor, "B L H P"],
    time_step: Float[Tensor, "B L H"],
    time_step_bias: Float[Tensor, " H"],
    decay_rate: Float[Tensor, " H"],
    input_map: Float[Tensor, "B L G N"],
    output_map: Float[Tensor, "B L G N"],
    skip: Float[Tensor, " H"],
    initial_state: Float[Tensor, "B H P N"] | None = None,
    *,
    chunk_length: int | None = None,
    return_final_state: bool = True,
) -> tuple[Float[Tensor, "B L H P"], Float[Tensor, "B H P N"] | None]:
    """Scan as `reference.state_space_scan`.

    Raises
    ------
    ImportError
        Where mamba-ssm's Triton kernels cannot be imported.
    """
    tensors = (
        *(inputs, time_step, time_step_bias, decay_rate),
        *(input_map, output_map, skip, initial_state),
    )
    options = {"chunk_length": chunk_length, "return_final_state": return_final_state}
    if transformed() or not inputs.numel() or inputs.dtype == torch.float64:
        return reference.state_space_scan(*tensors, **options)
    return _Scan.apply(options, *tensors)


def load() -> Any:
    """Return the module of mamba-ssm's scan; an ImportError where it cannot be imported."""
    name = "mamba_ssm.ops.triton.ssd_combined"
    if name in sys.modules:
        return sys.modules[name]
    with _without_initialisation("mamba_ssm"):
        return importlib.import_module(name)


class _Scan(torch.autograd.Function):
    """Keeps mamba-ssm's own graph, and goes to the twin for second derivatives."""

    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], *tensors: Tensor | None) -> Any:
        leaves = [
            None if tensor is None else tensor.detach().requires_grad_(tensor.requires_grad)
            for tensor in tensors
        ]
        with torch.set_grad_enabled(any(ctx.needs_input_grad)):
            found = _scan(*leaves, **options)
        ctx.options, ctx.graph = options, (leaves, found)
        ctx.save_for_backward(*tensors)
        return tuple(None if result is None else result.detach() for result in found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if backward_needs_twin(*gradients):
            needed = ctx.needs_input_grad[1:]
            inputs = ctx.saved_tensors
            twin = reference.state_space_scan
            return None, *twin_gradients(twin, inputs, needed, gradients, **ctx.options)
        leaves, found = ctx.graph
        flowing = [(x, g) for x, g in zip(found, gradients, strict=True) if g is not None]
        wanted = [x for x in leaves if x is not None and x.requires_grad]
        outputs, incoming = zip(*((x, g) for x, g in flowing if x is not None), strict=True)
        given = iter(
            torch.autograd.grad(outputs, wanted, incoming, retain_graph=True, allow_unused=True)
        )
        return None, *(next(given) if x is not None and x.requires_grad else None for x in leaves)


def _scan(
    inputs: Any,
    time_step: Any,
    time_step_bias: Any,
    decay_rate: Any,
    input_map: Any,
    output_map: Any,
    skip: Any,
    initial_state: Any,
    *,
    chunk_length: int | None,
    return_final_state: bool,
) -> tuple[Any, Any]:
    found = load().mamba_chunk_scan_combined(
        inputs,
        time_step,
        decay_rate,
        input_map,
        output_map,
        chunk_length or CHUNK_LENGTH,
        D=skip,
        dt_bias=time_step_bias,
        initial_states=initial_state,
        dt_softplus=True,
        return_final_states=return_final_state,
    )
    return found if return_final_state else (found, None)


@contextmanager
def _without_initialisation(package: str) -> Iterator[None]:
    """Allow submodules to be imported without running the package's own ``__init__``.

    mamba-ssm's fails without its CUDA extension, which its Triton kernels do not need.
    """
    if package in sys.modules:
        yield
        return
    found = importlib.util.find_spec(package)
    if found is None or found.submodule_search_locations is None:
        raise ImportError(f"{package} is not installed")
    module = types.ModuleType(package)
    module.__path__ = list(found.submodule_search_locations)
    module.__spec__ = found
    sys.modules[package] = module
    try:
        yield
    finally:
        del sys.modules[package]
