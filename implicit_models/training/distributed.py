"""The processes that train one model together, as torchrun starts them; one where it does not.

How many there are, and how they share the work, is not part of a result's identity: it comes from
the environment.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from implicit_models.families.family import family_of
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.placement import DeviceError, default_device
from implicit_models.training.precision import InPrecision
from implicit_models.training.rendezvous import open_store

PARALLELISM = "IMPLICIT_MODELS_PARALLELISM"
MICRO_BATCH = "IMPLICIT_MODELS_MICRO_BATCH"
CHECKPOINTING = "IMPLICIT_MODELS_CHECKPOINTING"

# The longest that processes wait for one of them: the main one compares a corpus's checksums alone.
_TIMEOUT = timedelta(minutes=60)

_TORCHRUN = "torchrun sets this: start several processes with it, or unset WORLD_SIZE for one"

Parallelism = Literal["ddp", "fsdp"]
Checkpointing = Literal["none", "iterations", "blocks"]
T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """One process among those that train together.

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
        """Return every process's value, in the order of their ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def from_main(self, value: T) -> T:
        """Return the main process's value."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Wait until all are here."""
        if self.size > 1:
            dist.barrier()


ALONE = Processes()


@dataclass(frozen=True)
class Execution:
    """How a step is computed here: its result depends on none of it, but for rounding.

    Attributes
    ----------
    micro_batch
        The most sequences that a process computes at once, with gradients added up over as many
        turns as that takes; None computes its whole share at once.
    checkpointing
        What is evaluated again in the backward pass to save memory: ``none``; ``iterations``, of
        which each keeps its input alone; ``blocks``, each of which does.
    """

    processes: Processes = ALONE
    micro_batch: int | None = None
    checkpointing: Checkpointing = "none"


@contextlib.contextmanager
def open_execution() -> Iterator[Execution]:
    """Read from the environment how to compute, and join the processes that torchrun has started.

    Raises
    ------
    DeviceError
        Where a variable is none of what is allowed.
    """
    parallelism = _choice(PARALLELISM, "ddp", "fsdp")
    checkpointing = _choice(CHECKPOINTING, "none", "iterations", "blocks")
    micro_batch = os.environ.get(MICRO_BATCH)
    if micro_batch and (not micro_batch.isdecimal() or int(micro_batch) < 1):
        raise DeviceError(
            f"{MICRO_BATCH} is {micro_batch!r}; allowed is a number of sequences from 1"
        )
    at_once = int(micro_batch) if micro_batch else None
    with _open_processes(parallelism) as processes:
        yield Execution(processes, at_once, checkpointing)  # type: ignore[arg-type]


def distribute(model: LanguageModel, precision: str, execution: Execution) -> nn.Module:
    """Return the module that is trained: the model in a precision, spread over the processes.

    The weights are gathered once for a whole forward and backward pass, so that no collective
    depends on how many iterations a process's own sequences take.

    Raises
    ------
    DeviceError
        Where the blocks of a model of transformers are to be evaluated again in bfloat16.
    """
    processes = execution.processes
    if execution.checkpointing == "blocks":
        if precision != "float32" and not family_of(model.config).recasts_blocks:
            raise DeviceError(
                f"{CHECKPOINTING} is 'blocks', and optimisation.precision is {precision!r}: a "
                f"{type(model).__name__} of transformers can have one or the other; set "
                f"{CHECKPOINTING}=none, or precision: float32"
            )
        # transformers before 5.20 has the older name alone, and later ones warn of it.
        name = "activation_checkpointing_enable"
        getattr(model, name if hasattr(model, name) else "gradient_checkpointing_enable")()
    module = InPrecision(model, precision)
    if processes.size == 1:
        return module
    if processes.parallelism == "fsdp":
        mesh = init_device_mesh(processes.device.type, (processes.size,))
        fully_shard(module, mesh=mesh, reshard_after_forward=False)
        return module
    return DistributedDataParallel(module, gradient_as_bucket_view=True)


@contextlib.contextmanager
def accumulating(module: nn.Module, *, is_last: bool) -> Iterator[None]:
    """Add gradients up, and exchange them among the processes after a step's last micro-batch."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(is_last)
        module.set_reshard_after_backward(is_last)
        yield
    elif isinstance(module, DistributedDataParallel) and not is_last:
        with module.no_sync():
            yield
    else:
        yield


@contextlib.contextmanager
def whole_weights(module: nn.Module) -> Iterator[None]:
    """Gather all weights on every process, so that each may call the model as often as it likes."""
    if not isinstance(module, FSDPModule):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


def whole_model(module: nn.Module, model: LanguageModel) -> LanguageModel:
    """Return the trained model in one piece; every process calls this, the main one may use it."""
    if not isinstance(module, FSDPModule):
        return model
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(module, options=options)
    if not weights:  # the main process has all
        return model
    whole = type(model)(model.config)
    whole.load_state_dict({name.removeprefix("model."): w for name, w in weights.items()})
    return whole


def _choice(variable: str, *allowed: str) -> str:
    found = os.environ.get(variable) or allowed[0]
    if found not in allowed:
        raise DeviceError(f"{variable} is {found!r}; allowed are {', '.join(allowed)}")
    return found


def _number(variable: str, default: str | None = None) -> int:
    """Read a number that torchrun sets."""
    found = os.environ.get(variable) or default
    if found is None or not found.isdecimal():
        raise DeviceError(f"{variable} is {found!r}; allowed is a whole number; {_TORCHRUN}")
    return int(found)


@contextlib.contextmanager
def _open_processes(parallelism: str) -> Iterator[Processes]:
    device = default_device()
    size = _number("WORLD_SIZE", "1")
    if size <= 1:
        yield Processes(device=device)
        return
    rank = _number("RANK")
    if rank >= size:
        raise DeviceError(f"RANK is {rank}; allowed is less than WORLD_SIZE, {size}; {_TORCHRUN}")
    if device.type == "cuda":
        device = torch.device("cuda", _number("LOCAL_RANK") % torch.cuda.device_count())
        torch.cuda.set_device(device)
    # Numbers and checkpoints travel between CPUs, gradients between GPUs.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    _number("MASTER_PORT")
    store = open_store(rank, size)
    if store is None:
        dist.init_process_group(backend, timeout=_TIMEOUT)
    else:
        found = {"store": store, "rank": rank, "world_size": size}
        dist.init_process_group(backend, timeout=_TIMEOUT, **found)
    try:
        yield Processes(rank, size, device, parallelism)  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()
