"""An iteration captured as a CUDA graph and replayed: the host then launches it in one call.

Off unless IMPLICIT_MODELS_CUDA_GRAPHS is 1. It pays where launching an iteration's kernels takes
the host longer than running them takes the GPU, as with small batches.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

VARIABLE = "IMPLICIT_MODELS_CUDA_GRAPHS"
Function = Callable[[Tensor], tuple[Tensor, ...]]


def uses_cuda_graphs(device: torch.device) -> bool:
    """Return whether iterations on a device are captured as CUDA graphs."""
    return device.type == "cuda" and _is_asked_for()


@functools.cache
def _is_asked_for() -> bool:
    asked = os.environ.get(VARIABLE, "0")
    if asked not in ("0", "1"):
        raise ValueError(f"{VARIABLE} is {asked!r}; allowed are 0 and 1")
    return asked == "1"


class GraphedCallable:
    """A function of one tensor whose shape stays, of which nothing waits for the device.

    The first call runs it, so that kernels are compiled and tuned; the second captures it; the
    graph is replayed from then on. Results are the caller's own.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._has_run = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: Tensor
        self._outputs: tuple[Tensor, ...]

    def __call__(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the function, one way or another."""
        if not self._has_run:
            self._has_run = True
            return self._function(inputs)
        with torch.cuda.device_of(inputs):
            if self._graph is None:
                self._graph = self._capture(inputs)
            self._inputs.copy_(inputs)
            self._graph.replay()
            return tuple(output.clone() for output in self._outputs)

    def _capture(self, inputs: Tensor) -> torch.cuda.CUDAGraph:
        self._inputs = inputs.clone()

        def run() -> None:
            self._outputs = self._function(self._inputs)

        memory = _memory(inputs.device)
        return _captured(run, memory.pool, memory.stream)


class _Memory(NamedTuple):
    """The memory in which a device's graphs take turns.

    Without a graph that stays, the pool would go with its last graph, and could take no other; its
    memory stays reserved for graphs. What was freed on one stream is not given to another, so that
    all are captured on the same.
    """

    pool: Any
    stream: torch.cuda.Stream
    graph: torch.cuda.CUDAGraph


@functools.cache
def _memory(device: torch.device) -> _Memory:
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
    graph = _captured(lambda: torch.zeros(1, device=device), pool, stream)
    return _Memory(pool, stream, graph)


def _captured(
    run: Callable[[], object], pool: Any, stream: torch.cuda.Stream
) -> torch.cuda.CUDAGraph:
    """Capture what runs on a stream, with memory of a pool."""
    graph, present = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    stream.wait_stream(present)
    # Casts that autocast remembers would live in the graph's memory.
    with torch.cuda.stream(stream), _without_autocast_cache():
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            run()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # that the capture is none: this says why
                graph.capture_end()
            _memory.cache_clear()  # the pool may be left as it is while capturing
            raise
        graph.capture_end()
    present.wait_stream(stream)
    return graph


def _without_autocast_cache() -> torch.autocast:
    return torch.autocast(
        "cuda",
        dtype=torch.get_autocast_dtype("cuda"),
        enabled=torch.is_autocast_enabled("cuda"),
        cache_enabled=False,
    )
