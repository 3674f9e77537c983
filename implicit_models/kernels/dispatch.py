"""Which kernels a device runs: decided once for each kind of device, logged with the reason."""

import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from implicit_models.kernels import mamba_ssm, reference
from implicit_models.kernels.mixer import (
    REFERENCE_MIXER,
    ComposedMixer,
)
from implicit_models.kernels.native import kernels as native
from implicit_models.kernels.native.library import library

VARIABLE = "IMPLICIT_MODELS_KERNELS"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kernels:
    """One implementation of each kernel.

    Attributes
    ----------
    mix, advance
        Of a Mamba2 mixer, with the signatures of `ComposedMixer`.
    rms_norm, normed_update, causal_attention, swiglu, cross_entropy
        With the signatures of `reference`, which stands in for those that are not given.
    """

    name: str
    mix: Callable[..., Any]
    advance: Callable[..., Any]
    rms_norm: Callable[..., Any]
    normed_update: Callable[..., Any]
    causal_attention: Callable[..., Any] = reference.causal_attention
    swiglu: Callable[..., Any] = reference.swiglu
    cross_entropy: Callable[..., Any] = reference.cross_entropy


def kernels_for(device: torch.device) -> Kernels:
    """Return the kernels that run on a device.

    Raises
    ------
    ValueError
        Where IMPLICIT_MODELS_KERNELS names kernels that do not exist or do not run here.
    """
    return _override.get() or _chosen(device.type)


@contextmanager
def using(kernels: Kernels) -> Iterator[None]:
    """Run certain kernels within a block, whatever the device.

    A backward pass belongs into the block as well, where activations are checkpointed: it
    computes them again.
    """
    token = _override.set(kernels)
    try:
        yield
    finally:
        _override.reset(token)


@functools.cache
def reference_kernels() -> Kernels:
    """Return the kernels in plain PyTorch."""
    mixer = REFERENCE_MIXER
    return Kernels(
        "reference", mixer.mix, mixer.advance, reference.rms_norm, reference.normed_update
    )


@functools.cache
def native_kernels() -> Kernels:
    """Return the kernels in C, for CPUs; an OSError where they cannot be compiled."""
    library()
    return Kernels(
        "native",
        native.mix,
        native.advance,
        native.rms_norm,
        native.normed_update,
        native.causal_attention,
        native.swiglu,
        native.cross_entropy,
    )


@functools.cache
def fused_kernels() -> Kernels:
    """Return the kernels in Triton; an ImportError where it is not installed."""
    return _in_triton("fused", None)


@functools.cache
def mamba_ssm_kernels() -> Kernels:
    """Return Triton's kernels with mamba-ssm's scan; an ImportError where either is missing."""
    mamba_ssm.load()
    return _in_triton("mamba_ssm", mamba_ssm.state_space_scan)


def _in_triton(name: str, scan: Callable[..., Any] | None) -> Kernels:
    fused = {
        part: importlib.import_module(f"implicit_models.kernels.fused.{part}")
        for part in ("convolution", "norm", "rotary", "scan", "step", "swiglu", "update")
    }
    mixer = ComposedMixer(
        fused["convolution"].causal_convolution,
        scan or fused["scan"].state_space_scan,
        fused["norm"].gated_rms_norm,
        fused["step"].mixer_step,
    )
    functions = (
        *(mixer.mix, mixer.advance, fused["norm"].rms_norm, fused["update"].normed_update),
        *(fused["rotary"].causal_attention, fused["swiglu"].swiglu),
    )
    return Kernels(name, *(_on_its_device(function) for function in functions))


def _on_its_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Launch on the first tensor's GPU: Triton would on the process's current one."""

    @functools.wraps(function)
    def launch(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        with torch.cuda.device_of(tensor):
            return function(tensor, *arguments, **options)

    return launch


@functools.cache
def compiled_kernels() -> Kernels:
    """Return those in PyTorch, compiled by torch.compile where it fuses them well."""
    mixer = ComposedMixer(
        torch.compile(reference.causal_convolution, dynamic=True),
        reference.state_space_scan,
        torch.compile(reference.gated_rms_norm, dynamic=True),
    )
    return Kernels(
        "compiled",
        mixer.mix,
        mixer.advance,
        torch.compile(reference.rms_norm, dynamic=True),
        torch.compile(reference.normed_update, dynamic=True),
    )


KERNELS: dict[str, Callable[[], Kernels]] = {
    "reference": reference_kernels,
    "native": native_kernels,
    "fused": fused_kernels,
    "mamba_ssm": mamba_ssm_kernels,
    "compiled": compiled_kernels,
}
_override: ContextVar[Kernels | None] = ContextVar("kernels", default=None)


@functools.cache
def _chosen(device_type: str) -> Kernels:
    asked = os.environ.get(VARIABLE)
    if asked:
        kernels, reason = _named(asked, device_type), f"{VARIABLE} says so"
    elif device_type in _FASTEST:
        kernels, reason = _FASTEST[device_type]()
    else:
        kernels, reason = reference_kernels(), "none faster is known for it"
    fell_back = not asked and device_type in _FASTEST and kernels.name == "reference"
    level = logging.WARNING if fell_back else logging.INFO  # they are several times slower
    _log.log(level, "kernels on %s: %s, because %s", device_type, kernels.name, reason)
    return kernels


def _named(name: str, device_type: str) -> Kernels:
    if name not in KERNELS:
        raise ValueError(f"{VARIABLE} is {name!r}; allowed are {', '.join(KERNELS)}")
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if name in ("fused", "mamba_ssm") and device_type != "cuda" and not interpreted:
        raise ValueError(
            f"{VARIABLE} is {name!r}, but they run on NVIDIA GPUs, not on {device_type}"
        )
    try:
        return KERNELS[name]()
    except (ImportError, OSError) as error:
        raise ValueError(f"{VARIABLE} is {name!r}, but {error}") from error


def _for_cpu() -> tuple[Kernels, str]:
    try:
        return native_kernels(), "they are the fastest for it"
    except OSError as error:
        return reference_kernels(), f"the native ones do not run here: {error}"


def _for_cuda() -> tuple[Kernels, str]:
    try:
        kernels = fused_kernels()
        _launch(kernels)
    except Exception as error:  # a version for another torch or Triton may fail in any way
        return reference_kernels(), f"the fused ones do not run here: {error}"
    return kernels, "they are made for it"


def _launch(kernels: Kernels) -> None:
    """Run the smallest of them, to see whether any can be compiled and launched."""
    row = torch.ones(1, 16, device="cuda")
    kernels.rms_norm(row, row[0], 1e-5)
    torch.cuda.synchronize()


_FASTEST = {"cpu": _for_cpu, "cuda": _for_cuda}
