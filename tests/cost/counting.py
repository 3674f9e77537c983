"""torch's own count of the FLOPs of what is done: the truth that closed forms are compared with."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from implicit_models.kernels.dispatch import reference_kernels, using

_MADE_OF_OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd


@functools.cache
def _is_made_of_others(operation: torch._ops.OpOverload) -> bool:
    return operation.has_kernel_for_dispatch_key(_MADE_OF_OTHERS)


@functools.cache
def _formula(operation: torch._ops.OpOverload) -> Callable[..., int] | None:
    return flop_registry.get(operation.overloadpacket)


class _Counter(TorchDispatchMode):
    """Adds up by torch's formulas, as its ``FlopCounterMode``, which takes long for each operation.

    That one also keeps track of modules, which fails on weights given to a block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and keeping it from that takes long

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if _is_made_of_others(func):
            with self:  # not by decompose(), which is in Python for the products of matrices
                return func._op_dk(_MADE_OF_OTHERS, *args, **kwargs)
        result = func(*args, **kwargs)
        formula = _formula(func)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=result)
        return result


def count(work: Callable[[], object]) -> int:
    """Count with the reference kernels; the counter does not see into a CPU's attention kernel."""
    with using(reference_kernels()), sdpa_kernel(SDPBackend.MATH), _Counter() as counter:
        work()
    return counter.flops
