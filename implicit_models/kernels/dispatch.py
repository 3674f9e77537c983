"""Which kernels a device runs: decided once for each, logged with the reason."""

import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from implicit_models.kernels import reference

VARIABLE = "IMPLICIT_MODELS_KERNELS"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kernels:
    """One implementation of each kernel, with the signatures of `reference`."""

    name: str
    causal_convolution: Callable[..., Any] = reference.causal_convolution
    state_space_scan: Callable[..., Any] = reference.state_space_scan
    gated_rms_norm: Callable[..., Any] = reference.gated_rms_norm
    normed_update: Callable[..., Any] = reference.normed_update
    mixer_step: Callable[..., Any] = reference.mixer_step


REFERENCE = Kernels("reference")
_override: ContextVar[Kernels | None] = ContextVar("kernels", default=None)


def kernels_for(device: torch.device) -> Kernels:
    """Give the kernels that run on a device."""
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
def _chosen(device_type: str) -> Kernels:
    return REFERENCE
