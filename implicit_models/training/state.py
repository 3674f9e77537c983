"""The state of a training by name, however its tensors are spread over processes.

The names are ``model.WEIGHT`` and ``optimiser.WEIGHT.KEY``: the same for a plain module, under
`DistributedDataParallel` and under FSDP2, so that a state that one of them leaves can be taken up
by another. (torch's ``get_state_dict`` has such names too, but has an optimiser make a step where
it has no state yet, and refuses weights that never had a gradient.)
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel


def named_state(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return all that training changes, each tensor once: the very tensors, not copies.

    Under FSDP2 they are DTensors, of which a process holds a part, but for buffers and the
    optimiser's numbers of steps.
    """
    module = _inner(model)
    # Before anything else: this has FSDP2 put the parameters back that the optimiser knows.
    weights = module.state_dict()
    tied = _tied_names(module)
    state = {f"model.{name}": weights[name] for name in weights if name not in tied}
    for name, parameter in module.named_parameters():
        values: Mapping[str, Tensor] = optimiser.state.get(parameter, {})
        state |= {f"optimiser.{name}.{key}": value for key, value in values.items()}
    return state


def layout(model: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    """Return, for each name in a written state, a tensor of the shape and spread that it has here.

    Raises
    ------
    ValueError
        Where the names are not those of this model, naming the first that is not.
    """
    module = _inner(model)
    weights, parameters = module.state_dict(), dict(module.named_parameters())
    tied = _tied_names(module)
    expected = {f"model.{name}" for name in weights if name not in tied}
    found: dict[str, Tensor] = {}
    for name in names:
        kind, _, rest = name.partition(".")
        if kind == "model" and name in expected:
            found[name] = weights[rest]
            continue
        parameter, _, key = rest.rpartition(".")
        if kind != "optimiser" or parameter not in parameters:
            raise ValueError(f"{name} is written there, and is no part of this training")
        found[name] = torch.empty(()) if key == "step" else parameters[parameter]
    if missing := sorted(expected - set(found)):
        raise ValueError(f"{missing[0]} is part of this training, and is not written there")
    return found


def spread(name: str, whole: Tensor, like: Tensor) -> Tensor:
    """Return what a process holds of a tensor that it has read as a whole.

    Raises
    ------
    ValueError
        Where the shapes differ.
    """
    if whole.shape != like.shape:
        raise ValueError(f"{name} is {tuple(whole.shape)} there, and {tuple(like.shape)} here")
    if isinstance(like, DTensor):
        # Each process has read it, so none needs to be sent another's.
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return whole.to(like.device, copy=True)  # what is read from a file can be a view of it


def put_state(
    model: nn.Module, optimiser: torch.optim.Optimizer, state: Mapping[str, Tensor]
) -> None:
    """Load a state of this `layout` into a model and its optimiser, in place of theirs."""
    module = _inner(model)
    weights = _under("model.", state)
    tied = _tied_names(module)
    module.load_state_dict(weights | {name: weights[first] for name, first in tied.items()})
    names = {parameter: name for name, parameter in module.named_parameters()}
    ordered = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    values = {
        index: _under(f"optimiser.{names[parameter]}.", state)
        for index, parameter in enumerate(ordered)
    }
    groups = optimiser.state_dict()["param_groups"]
    with_state = {index: each for index, each in values.items() if each}
    optimiser.load_state_dict({"state": with_state, "param_groups": groups})


def _inner(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def _tied_names(module: nn.Module) -> dict[str, str]:
    """Return the names of weights that are another's once more, such as a tied head's."""
    names: dict[Tensor, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {name: first for first, *others in names.values() for name in others}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
