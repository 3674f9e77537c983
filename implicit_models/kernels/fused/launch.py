"""What the launches of all fused kernels share: block sizes, precision and tuning.

Every kernel is written as::

    @tuned(configurations({"BLOCK": 64}, {"BLOCK": 128}, warps=(4, 8)), key=("channels",))
    @triton.jit
    @no_type_check
    def _kernel(...): ...

``no_type_check`` keeps the tests' shape checker off the kernel: Triton needs the bare function.
"""

import inspect
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from implicit_models.kernels.reference import accumulation_dtype

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_KEEPS_RESULTS = "cache_results" in inspect.signature(triton.autotune).parameters


def configurations(
    *blocks: Mapping[str, int], warps: Sequence[int] = (4,), stages: Sequence[int] = (2,)
) -> list[triton.Config]:
    """Return every combination of block sizes, warps and stages for `tuned`.

    Only the first under Triton's interpreter, which has no driver to time them with.
    """
    choices = itertools.product(blocks, warps, stages)
    found = [triton.Config(dict(b), num_warps=w, num_stages=s) for b, w, s in choices]
    return found[:1] if INTERPRETED else found


def tuned(configs: list[triton.Config], key: Sequence[str]) -> Callable[[Any], Any]:
    """Decorate a kernel to run the fastest of ``configs`` for each value of its arguments ``key``.

    The times are kept on disk where this Triton can, so that only the first process measures.
    """
    keeping = {"cache_results": True} if _KEEPS_RESULTS else {}
    return triton.autotune(configs=configs, key=list(key), **keeping)


def block_size(size: int, most: int | None = None) -> int:
    """Return the smallest power of two that covers ``size``, or ``most`` where that is less."""
    block = 1 << max(size - 1, 0).bit_length()
    return block if most is None else min(block, most)


def num_blocks(size: int, block: int) -> int:
    """Return the number of blocks that cover ``size``."""
    return -(-size // block)


def accumulation_type(dtype: torch.dtype) -> tl.dtype:
    """Return Triton's name of the precision in which numbers of ``dtype`` are added up."""
    return tl.float64 if accumulation_dtype(dtype) == torch.float64 else tl.float32
