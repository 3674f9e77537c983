"""What the parts of the GPU benchmark share: sizes, the clock, the memory, and cases that fail."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import harness
from implicit_models.families.sizes import from_size
from implicit_models.kernels.dispatch import Kernels, fused_kernels, kernels_for
from implicit_models.kernels.mixer import ComposedMixer
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.language_models.placement import default_device

Row = dict[str, Any]

MODELS = ("mamba2-130m", "mamba2-350m", "llama-130m", "llama-350m")
_TINY: dict[str, dict[str, Any]] = {
    "mamba2": {"state_size": 16, "head_dim": 16, "chunk_size": 16},
    "llama": {"num_attention_heads": 2, "intermediate_size": 64},
}


@dataclass(frozen=True, eq=False)
class Scale:
    """How large everything is: as the paper's, or tiny.

    Attributes
    ----------
    phases
        Self-iterations of the search, and phantom steps.
    batches
        Texts of a micro-batch, by the end of a model's name.
    warmup, steps, seconds
        Of measurements of many milliseconds: calls that do not count and calls that do, and when
        to end before.
    matrix_sizes, copy_bytes
        Of what measures the ceilings.
    decoded
        Texts of which a kernel reads one token each.
    """

    length: int
    phases: tuple[tuple[int, int], ...]
    batches: dict[str, int]
    warmup: int
    steps: int
    seconds: float
    matrix_sizes: tuple[int, ...]
    copy_bytes: int
    decoded: int
    dtype: torch.dtype

    def config(self, model: str, **changes: Any) -> ImplicitConfig:
        """Return a model's configuration."""
        if self is not TINY:
            return from_size(model, **changes)
        tiny = {"num_hidden_layers": 2, "hidden_size": 32, "vocab_size": 64}
        return from_size(model, **tiny, **_TINY[model.partition("-")[0]], **changes)


FULL = Scale(
    length=2048,
    phases=((4, 1), (24, 4)),
    batches={"130m": 8, "350m": 4},
    warmup=1,
    steps=3,
    seconds=12.0,
    matrix_sizes=(8192, 16384),
    copy_bytes=2**32,
    decoded=64,
    dtype=torch.bfloat16,
)
# In float32: Triton's interpreter multiplies bfloat16 matrices wrongly.
TINY = Scale(
    length=20,
    phases=((1, 1), (2, 1)),
    batches={"130m": 2, "350m": 1},
    warmup=0,
    steps=1,
    seconds=1.0,
    matrix_sizes=(64,),
    copy_bytes=2**20,
    decoded=2,
    dtype=torch.float32,
)


def device() -> torch.device:
    """Return the device that is measured."""
    return default_device()


def our_kernels() -> Kernels:
    """Return the kernels that are measured: the fused ones also under Triton's interpreter."""
    if device().type == "cpu":
        from implicit_models.kernels.fused.launch import INTERPRETED

        if INTERPRETED:
            return fused_kernels()
    return kernels_for(device())


def named(kernels: Kernels, mixer: ComposedMixer, name: str) -> Kernels:
    """Return kernels with another mixer, under a name of their own."""
    return Kernels(name, mixer.mix, mixer.advance, kernels.rms_norm, kernels.normed_update)


def synchronize() -> None:
    """Wait for the device."""
    if device().type == "cuda":
        torch.cuda.synchronize()


def median_seconds(function: Callable[[], Any], scale: Scale) -> float:
    """Time calls of many milliseconds; `peak_gibibytes` is then theirs, without the first ones."""
    for _ in range(scale.warmup):
        function()
    synchronize()
    if device().type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds: list[float] = []
    while len(seconds) < scale.steps and sum(seconds) < scale.seconds:
        start = time.perf_counter()
        function()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def kernel_seconds(function: Callable[[], Any]) -> float:
    """Time calls of less than that: with events, and with the cache emptied between calls."""
    if device().type == "cpu":
        return harness.measure(function, repeats=1, warmup=0).median
    from triton.testing import do_bench

    milliseconds = do_bench(function, return_mode="median")
    assert isinstance(milliseconds, float)
    return milliseconds / 1e3


def peak_gibibytes() -> float | None:
    """Return the peak GiB of tensors since the last reset; None on a CPU."""
    return torch.cuda.max_memory_allocated() / 2**30 if device().type == "cuda" else None


def release() -> None:
    """Free memory that nothing refers to."""
    gc.collect()
    if device().type == "cuda":
        torch.cuda.empty_cache()


def attempt(row: Row, measure: Callable[[], Row]) -> Iterator[Row]:
    """Yield a row with its measurement, or with its error, so that the other cases go on."""
    try:
        found = row | measure()
    except Exception as error:  # whatever it is, it is a finding
        found = row | {"error": describe(error)}
    release()
    yield found


def describe(error: BaseException) -> str:
    """Return an error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def ceilings(scale: Scale) -> Iterator[Row]:
    """Measure what the device can do: products of large matrices, and a large copy."""
    for size in scale.matrix_sizes:
        row: Row = {"part": "ceiling", "what": f"product of {size} x {size} matrices"}
        yield from attempt(row, lambda size=size: _product(size, scale))
    row = {"part": "ceiling", "what": f"copy of {scale.copy_bytes / 2**30:.3g} GiB"}
    yield from attempt(row, lambda: _copy(scale.copy_bytes))


def _product(size: int, scale: Scale) -> Row:
    one, other = (torch.randn(size, size, device=device(), dtype=scale.dtype) for _ in range(2))
    seconds = kernel_seconds(lambda: one @ other)
    return {"seconds": seconds, "teraflops": 2 * size**3 / seconds / 1e12}


def _copy(num_bytes: int) -> Row:
    source = torch.randn(num_bytes // 4, device=device())
    target = torch.empty_like(source)
    seconds = kernel_seconds(lambda: target.copy_(source))
    return {"seconds": seconds, "gigabytes_per_second": 2 * num_bytes / seconds / 1e9}
