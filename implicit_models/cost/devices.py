"""What accelerators can do at most, by their vendors' figures or else by a measurement."""

import functools
import math
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from implicit_models.parameters.errors import closest_words

VARIABLE = "IMPLICIT_MODELS_PEAK_FLOPS"

# Of a measurement: a matrix product that takes this long is large enough to be timed.
_SECONDS_OF_A_PRODUCT, _REPETITIONS = 0.01, 3
_SMALLEST_MATRIX, _LARGEST_MATRIX = 512, 16_384


class DeviceFactsError(ValueError):
    """A device is not known, or the environment says something impossible of it."""


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """A vendor's figures of an accelerator.

    Attributes
    ----------
    name
        As its vendor calls it.
    pattern
        Finds it in what ``torch.cuda.get_device_name`` says.
    memory_bytes
        In the vendor's decimal gigabytes; most have some per cent more.
    bfloat16, tensor_float32, float32
        FLOPs a second of dense products of matrices (those with structured sparsity are twice as
        many): with bfloat16 factors, with float32 ones that are rounded to TF32, and exact ones.
    """

    name: str
    pattern: str
    memory_bytes: float
    bfloat16: float
    tensor_float32: float
    float32: float

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """Return FLOPs a second for factors of a dtype; None where the vendor's are not known."""
        if dtype in (torch.bfloat16, torch.float16):
            return self.bfloat16
        if dtype != torch.float32:
            return None
        rounded = torch.backends.cuda.matmul.fp32_precision == "tf32"
        return self.tensor_float32 if rounded else self.float32


def _of(name: str, pattern: str, gigabytes: float, *teraflops: float) -> Accelerator:
    bfloat16, tensor_float32, float32 = (1e12 * figure for figure in teraflops)
    return Accelerator(
        name=name,
        pattern=pattern,
        memory_bytes=1e9 * gigabytes,
        bfloat16=bfloat16,
        tensor_float32=tensor_float32,
        float32=float32,
    )


# From the vendors' data sheets: NVIDIA's of the A100, H100, H200, L40S and HGX B200, whose
# tensor cores' figures are halved where they count sparsity; AMD's of the MI300X and the MI325X.
# Where two patterns find the same name the first of them counts.
ACCELERATORS: dict[str, Accelerator] = {
    "b200": _of("NVIDIA B200", r"B200", 180, 2250, 1125, 75),
    "h200": _of("NVIDIA H200 SXM", r"H200", 141, 989, 494.5, 67),
    "h100_pcie": _of("NVIDIA H100 PCIe", r"H100 PCIe", 80, 756, 378, 51),
    "h100": _of("NVIDIA H100 SXM", r"H100(?! NVL)", 80, 989, 494.5, 67),
    "a100_40gb": _of("NVIDIA A100 40 GB", r"A100.*40GB", 40, 312, 156, 19.5),
    "a100": _of("NVIDIA A100 80 GB", r"A100", 80, 312, 156, 19.5),
    "l40s": _of("NVIDIA L40S", r"L40S", 48, 362, 183, 91.6),
    "mi325x": _of("AMD Instinct MI325X", r"MI325X", 256, 1307.4, 653.7, 163.4),
    "mi300x": _of("AMD Instinct MI300X", r"MI300X", 192, 1307.4, 653.7, 163.4),
}


def accelerator(name: str) -> Accelerator:
    """Return what is known of an accelerator, ``h100``.

    Raises
    ------
    DeviceFactsError
        Naming those that are known, and the closest of them.
    """
    if name not in ACCELERATORS:
        closest = closest_words(name.lower(), ACCELERATORS)
        raise DeviceFactsError(f"device = {name!r} is not known; {closest}")
    return ACCELERATORS[name]


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the most FLOPs a second that products of matrices of a dtype can reach on a device.

    The vendor's figure of a known GPU; of any other device that of a large product, measured once
    in some tens of milliseconds; what ``IMPLICIT_MODELS_PEAK_FLOPS`` says before either.

    Raises
    ------
    DeviceFactsError
        Where the variable holds no positive number.
    """
    asked = os.environ.get(VARIABLE)
    if asked:
        return _positive(asked)
    if device.type == "cuda":
        found = find_accelerator(torch.cuda.get_device_name(device))
        figure = found.peak_flops(dtype) if found else None
        if figure is not None:
            return figure
    return _measured(device, dtype)


def find_accelerator(device_name: str) -> Accelerator | None:
    """Return the accelerator that torch calls so; None where it is not known."""
    known = ACCELERATORS.values()
    return next((each for each in known if re.search(each.pattern, device_name)), None)


def _positive(asked: str) -> float:
    try:
        value = float(asked)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise DeviceFactsError(
            f"{VARIABLE} is {asked!r}; allowed is a positive number of FLOPs a second, such as "
            "989e12, or nothing"
        )
    return value


@functools.cache
def _measured(device: torch.device, dtype: torch.dtype) -> float:
    """Time products of growing matrices until one takes long enough, and that one once more."""
    size = _SMALLEST_MATRIX
    while True:
        product = _product(device, dtype, size)
        seconds = min(product() for _ in range(_REPETITIONS))
        if seconds >= _SECONDS_OF_A_PRODUCT or size >= _LARGEST_MATRIX:
            return 2 * size**3 / seconds
        size *= 2


@torch.no_grad()
def _product(device: torch.device, dtype: torch.dtype, size: int) -> Callable[[], float]:
    left, right = torch.ones(2, size, size, device=device, dtype=dtype)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def timed() -> float:
        wait()
        began = time.perf_counter()
        torch.mm(left, right)
        wait()
        return time.perf_counter() - began

    timed()  # the first one prepares the library
    return timed
