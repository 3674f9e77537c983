"""Compile the fused kernels of forward and backward passes for an H100, where there is none.

    python -m tests.kernels.compile_for_h100 DTYPE CONFIGURATION

Calls the kernels' own functions, forward and backward, on tensors of a model's sizes. Each launch
is compiled down to machine code with exactly its arguments, and not run. CONFIGURATION is the index
of the tuned configuration to compile (0, the first, or -1, the last). Prints a line a launch: the
kernel's file and name, and the bytes of shared memory that it takes.
"""

import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from implicit_models.kernels.dispatch import fused_kernels
from implicit_models.kernels.mixer import MixerSettings, MixerWeights

BATCH, LENGTH, HEADS, WIDTH, STATE, MODEL, HIDDEN = 2, 256, 4, 64, 128, 96, 160


class _H100:
    """What Triton asks of a driver before it launches anything."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main(dtype: str, configuration: str) -> None:
    """Compile, and print."""
    driver.set_active(_H100())  # type: ignore[arg-type]
    launch, index = JITFunction.run, int(configuration)

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = launch(self, *arguments, grid=grid, warmup=True, **options)
        print(self.fn.__module__.rpartition(".")[2], self.fn.__name__, kernel.metadata.shared)
        return kernel

    def one_configuration(self: Any, *arguments: Any, **options: Any) -> Any:
        return self.fn.run(*arguments, **options, **self.configs[index].all_kwargs())

    JITFunction.run, Autotuner.run = compile_only, one_configuration
    call_everything(getattr(torch, dtype))


def call_everything(dtype: torch.dtype) -> None:
    """Call each kernel, and its backward where it has one."""
    kernels = fused_kernels()
    inner, channels = HEADS * WIDTH, HEADS * WIDTH + 2 * STATE

    def new(*size: int, leaf: bool = True) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, requires_grad=leaf)

    projected = new(BATCH, LENGTH, inner + channels + HEADS)
    rates = torch.zeros(HEADS, requires_grad=True)
    weights = MixerWeights(
        *(new(channels, 4), new(channels), new(HEADS), rates, new(HEADS), new(inner))
    )
    mixed = kernels.mix(projected, weights, MixerSettings(1, 1e-5), None, None)
    torch.autograd.grad(mixed.sum(), [projected, *weights])

    hidden = torch.zeros(BATCH, LENGTH, MODEL, requires_grad=True)
    normed = kernels.rms_norm(hidden, new(MODEL), 1e-5)
    torch.autograd.grad(normed.sum(), hidden)
    heads = [new(BATCH, LENGTH, number, WIDTH) for number in (HEADS, HEADS, HEADS)]
    angles = (new(1, LENGTH, 1, WIDTH, leaf=False) for _ in range(2))
    torch.autograd.grad(kernels.causal_attention(*heads, *angles).sum(), heads)
    gate_and_up = [new(BATCH, LENGTH, HIDDEN) for _ in range(2)]
    torch.autograd.grad(kernels.swiglu(*gate_and_up).sum(), gate_and_up)

    with torch.no_grad():
        kernels.swiglu(*gate_and_up)
        kernels.normed_update(hidden, new(MODEL), 1e-5, torch.zeros_like(hidden), 0.8)
        tail, state = new(BATCH, 3, channels), torch.zeros(BATCH, HEADS, WIDTH, STATE)
        kernels.mix(projected[:, :1], weights, MixerSettings(1, 1e-5), tail, state)


if __name__ == "__main__":
    main(*sys.argv[1:])
