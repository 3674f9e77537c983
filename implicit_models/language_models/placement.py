"""Where a model lives: hardware comes from the environment, never from params.yaml."""

import os

import torch

VARIABLE = "IMPLICIT_MODELS_DEVICE"


class DeviceError(ValueError):
    """The device asked for cannot be used."""


def default_device() -> torch.device:
    """Return the device named by ``IMPLICIT_MODELS_DEVICE``; without it a GPU, or else the CPU.

    Raises
    ------
    DeviceError
        Where torch does not know the device or this machine does not have it.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(
            f"{VARIABLE} is {name!r}, which cannot be used: {error}; allowed is a device "
            "that PyTorch finds here, such as cpu or cuda"
        ) from None
