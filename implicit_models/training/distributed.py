"""The processes that train one model together, as torchrun starts them; one where it does not.

How many there are, and how they share the work, is not part of a result's identity: it comes from
the environment.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from implicit_models.language_models.placement import DeviceError, default_device

PARALLELISM = "IMPLICIT_MODELS_PARALLELISM"

Parallelism = Literal["ddp", "fsdp"]
T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among those that train together.

    Attributes
    ----------
    rank, size
        Which one of how many.
    device
        Where this one computes.
    parallelism
        ``ddp``: each holds the whole model and its optimiser's state; ``fsdp``: each holds a part
        of the weights, of their gradients and of the optimiser's state.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    parallelism: Parallelism = "ddp"

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and reports."""
        return self.rank == 0

    def total(self, *values: float | Tensor) -> list[float]:
        """Sum numbers over all processes, in one collective."""
        numbers = torch.stack([torch.as_tensor(v, dtype=torch.float64).cpu() for v in values])
        if self.size > 1:
            dist.all_reduce(numbers)
        return numbers.tolist()

    def gathered(self, value: T) -> list[T]:
        """Give every process's value, in the order of their ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def from_main(self, value: T) -> T:
        """Give the main process's value."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Go on when all are here."""
        if self.size > 1:
            dist.barrier()


@contextlib.contextmanager
def open_processes() -> Iterator[Processes]:
    """Join the processes that torchrun has started; alone where it has not.

    Raises
    ------
    DeviceError
        Where ``IMPLICIT_MODELS_PARALLELISM`` is neither ``ddp`` nor ``fsdp``.
    """
    parallelism = os.environ.get(PARALLELISM) or "ddp"
    if parallelism not in ("ddp", "fsdp"):
        raise DeviceError(f"{PARALLELISM} is {parallelism!r}; allowed are ddp and fsdp")
    device = default_device()
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        yield Processes(device=device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    # Numbers and checkpoints travel between CPUs, gradients between GPUs.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), device, parallelism)  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()
