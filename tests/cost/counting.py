"""torch's own count of the FLOPs of what is done: the truth that closed forms are compared with."""

from collections.abc import Callable

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from implicit_models.kernels.dispatch import reference_kernels, using


class _NoModules:
    """In place of the counter's module tracker, which fails on weights given to a block."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


def count(work: Callable[[], object]) -> int:
    """Count with the reference kernels; the counter does not see into a CPU's attention kernel."""
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _NoModules()  # type: ignore[assignment]
    with using(reference_kernels()), sdpa_kernel(SDPBackend.MATH), counter:
        work()
    return counter.get_total_flops()
