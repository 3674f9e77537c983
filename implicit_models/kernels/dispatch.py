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

from implicit_models.kernels import reference
from implicit_models.kernels.mixer import ComposedMixer
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
    rms_norm, normed_update
        With the signatures of `reference`.
    """

    name: str
    mix: Callable[..., Any]
    advance: Callable[..., Any]
    rms_norm: Callable[..., Any]
    normed_update: Callable[..., Any]


def kernels_for(device: torch.device) -> Kernels:
    """Give the kernels that run on a device.

    Raises
    ------
    ValueError
        Where IMPLICIT_MODELS_KERNELS names kernels that do not exist or do not run here.
    """
    return _override.get() or _chosen(device.type)


@contextmanager
def using(kernels: Kernels) -> Iterator[None]:
    """Run certain kernels within a block, whatever the device."""
    token = _override.set(kernels)
    try:
        yield
    finally:
        _override.reset(token)


@functools.cache
def reference_kernels() -> Kernels:
    """Give the kernels in plain PyTorch."""
    mixer = ComposedMixer(
        reference.causal_convolution, reference.state_space_scan, reference.gated_rms_norm
    )
    return Kernels(
        "reference", mixer.mix, mixer.advance, reference.rms_norm, reference.normed_update
    )


@functools.cache
def native_kernels() -> Kernels:
    """Give the kernels in C, for CPUs; an OSError where they cannot be compiled."""
    library()
    return Kernels("native", native.mix, native.advance, native.rms_norm, native.normed_update)


@functools.cache
def fused_kernels() -> Kernels:
    """Give the kernels in Triton; an ImportError where it is not installed."""
    fused = {
        name: importlib.import_module(f"implicit_models.kernels.fused.{name}")
        for name in ("convolution", "norm", "scan", "step", "update")
    }
    mixer = ComposedMixer(
        fused["convolution"].causal_convolution,
        fused["scan"].state_space_scan,
        fused["norm"].gated_rms_norm,
        fused["step"].mixer_step,
    )
    return Kernels(
        "fused", mixer.mix, mixer.advance, fused["norm"].rms_norm, fused["update"].normed_update
    )


@functools.cache
def compiled_kernels() -> Kernels:
    """Give those in PyTorch, compiled by torch.compile where it fuses them well."""
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
    "compiled": compiled_kernels,
}
_override: ContextVar[Kernels | None] = ContextVar("kernels", default=None)


@functools.cache
def _chosen(device_type: str) -> Kernels:
    asked = os.environ.get(VARIABLE)
    if asked is not None:
        kernels, reason = _named(asked), f"{VARIABLE} says so"
    elif device_type in _FASTEST:
        kernels, reason = _fastest(device_type)
    else:
        kernels, reason = reference_kernels(), "none faster is known for it"
    _log.info("kernels on %s: %s, because %s", device_type, kernels.name, reason)
    return kernels


_FASTEST = {"cpu": "native", "cuda": "fused"}


def _named(name: str) -> Kernels:
    if name not in KERNELS:
        raise ValueError(f"{VARIABLE} is {name!r}; allowed are {', '.join(KERNELS)}")
    try:
        return KERNELS[name]()
    except (ImportError, OSError) as error:
        raise ValueError(f"{VARIABLE} is {name!r}, but {error}") from error


def _fastest(device_type: str) -> tuple[Kernels, str]:
    name = _FASTEST[device_type]
    try:
        return KERNELS[name](), "they are the fastest for it"
    except (ImportError, OSError) as error:
        return reference_kernels(), f"the {name} ones do not run here: {error}"
