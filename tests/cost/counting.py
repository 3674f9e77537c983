"""torch's own count of the FLOPs of what is done: the truth that closed forms are compared with."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from implicit_models.kernels.dispatch import reference_kernels, using


@functools.cache
def _is_made_of_others(operation: torch._ops.OpOverload) -> bool:
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return operation.has_kernel_for_dispatch_key(key)


class _Counter(TorchDispatchMode):
    """Adds up by torch's formulas, as its ``FlopCounterMode``, which takes long for each operation.

    That one also keeps track of modules, which fails on weights given to a block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if _is_made_of_others(func):
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=result)
        return result


def count(work: Callable[[], object]) -> int:
    """Count with the reference kernels; the counter does not see into a CPU's attention kernel."""
    with using(reference_kernels()), sdpa_kernel(SDPBackend.MATH), _Counter() as counter:
        work()
    return counter.flops
