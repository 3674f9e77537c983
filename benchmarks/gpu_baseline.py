"""What the GPU benchmark compares with: mamba-ssm's unfused kernels, and torchdeq's loop.

Either may be missing. In their place come the reference kernels, and a loop that measures the
batch's relative residual in each iteration and waits for it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_device import named
from implicit_models.kernels import mamba_ssm, reference
from implicit_models.kernels.dispatch import Kernels, reference_kernels
from implicit_models.kernels.mixer import ComposedMixer

Loop = Callable[[Callable[[Tensor], Tensor], Tensor, int, float], Tensor]


def baseline_kernels(family: str) -> list[Kernels]:
    """Return possible kernels of the baseline, best first; mamba-ssm's are for Mamba2 alone."""
    found = []
    if family == "mamba2":
        try:
            found.append(unfused_mamba_ssm_kernels())
        except Exception as error:  # another version may fail in any way
            print(f"mamba-ssm cannot be used: {error}", file=sys.stderr)
    return [*found, reference_kernels()]


def baseline_loop() -> tuple[str, Loop]:
    """Return the name of the baseline's loop, and the loop."""
    if importlib.util.find_spec("torchdeq") is None:
        return "plain", _plain_loop
    return "torchdeq", _torchdeq_loop


@torch.no_grad()
def _torchdeq_loop(
    cell: Callable[[Tensor], Tensor], start: Tensor, num_steps: int, damping: float
) -> Tensor:
    from torchdeq.solver import fixed_point_iter

    arguments = {"stop_mode": "rel", "tol": 0.0, "return_final": True}
    return fixed_point_iter(cell, start, max_iter=num_steps, tau=damping, **arguments)[0]


@torch.no_grad()
def _plain_loop(
    cell: Callable[[Tensor], Tensor], start: Tensor, num_steps: int, damping: float
) -> Tensor:
    value = start
    for _ in range(num_steps):
        following = damping * cell(value) + (1 - damping) * value
        difference = (following - value).flatten(1).norm(dim=1)
        residual = difference / (following.flatten(1).norm(dim=1) + 1e-9)
        value = following
        if residual.max().item() < 0.0:
            break
    return value


def mamba_ssm_functions() -> dict[str, Callable[..., Any]]:
    """Return mamba-ssm's functions with our signatures, by the names of `gpu_kernels`' cases.

    None of them where it cannot be imported; of the convolution only causal_conv1d's.
    """
    try:
        mamba_ssm.load()
        found: dict[str, Callable[..., Any]] = {"gated norm": _gated_norm()}
    except Exception as error:  # another version may fail in any way
        print(f"mamba-ssm cannot be used: {error}", file=sys.stderr)
        return {}
    convolution, name = _convolution()
    found |= {"convolution": convolution} if name == "causal_conv1d" else {}
    return found | {"scan": mamba_ssm.state_space_scan}


def unfused_mamba_ssm_kernels() -> Kernels:
    """Return mamba-ssm's scan, norm and (where its package is installed) convolution.

    Raises
    ------
    ImportError
        Where mamba-ssm's Triton kernels cannot be imported.
    """
    mamba_ssm.load()
    convolution, suffix = _convolution()
    mixer = ComposedMixer(convolution, mamba_ssm.state_space_scan, _gated_norm())
    return named(reference_kernels(), mixer, f"mamba-ssm, {suffix}")


def _gated_norm() -> Callable[..., Tensor]:
    norm = importlib.import_module("mamba_ssm.ops.triton.layernorm_gated")

    def gated_rms_norm(
        inputs: Tensor, gate: Tensor, weight: Tensor, epsilon: float, num_groups: int = 1
    ) -> Tensor:
        return norm.rmsnorm_fn(
            inputs,
            weight,
            None,
            z=gate,
            eps=epsilon,
            group_size=inputs.shape[-1] // num_groups,
            norm_before_gate=False,
        )

    return gated_rms_norm


def _convolution() -> tuple[Callable[..., Tensor], str]:
    try:
        causal_conv1d_fn = importlib.import_module("causal_conv1d").causal_conv1d_fn
    except Exception:  # a CUDA extension of another torch fails in its own ways
        causal_conv1d_fn, name = None, "conv1d"
    else:
        name = "causal_conv1d"

    def convolution(
        inputs: Tensor, weight: Tensor, bias: Tensor, carry: Tensor | None = None
    ) -> Tensor:
        if carry is not None:
            return reference.causal_convolution(inputs, weight, bias, carry)
        channels = inputs.transpose(1, 2)
        if causal_conv1d_fn is not None:
            return causal_conv1d_fn(channels, weight, bias, activation="silu").transpose(1, 2)
        width = weight.shape[1]
        outputs = F.conv1d(channels, weight[:, None], bias, padding=width - 1, groups=len(weight))
        return F.silu(outputs[..., : inputs.shape[1]]).transpose(1, 2)

    return convolution, name
