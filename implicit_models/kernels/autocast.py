"""Kernels that autocast leaves alone: what they compute in float32 stays in it."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def without_autocast(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a kernel that runs with autocast off on the device of its inputs.

    Its products of float32 would be taken in bfloat16 otherwise.
    """

    @functools.wraps(kernel)
    def run(*arguments: _P.args, **options: _P.kwargs) -> _R:
        inputs = next(x for x in (*arguments, *options.values()) if isinstance(x, torch.Tensor))
        device = inputs.device.type
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return kernel(*arguments, **options)
        with torch.autocast(device, enabled=False):
            return kernel(*arguments, **options)

    return run
