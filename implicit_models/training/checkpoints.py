"""Checkpoints of training: atomic, complete, and only ever continued by the same training."""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

log = logging.getLogger(__name__)

KEPT = 2


@dataclass(frozen=True)
class Progress:
    """What a checkpoint says besides its tensors.

    Attributes
    ----------
    step
        Optimiser steps done. It is the position in the schedule and in the data as well: both
        are pure functions of the step and the seed.
    tokens, flops
        Tokens that the entry has been trained on so far, in all segments, and the floating-point
        operations that took; validation is not among them.
    seconds
        Wall time of this segment's loop so far, validation and checkpoints included.
    history
        One row of metrics for each time something was logged in this segment.
    """

    step: int
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


def save_state(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress
) -> None:
    """Write everything that training needs to go on, in one file that appears whole or not."""
    tied = _tied_names(model)
    weights = model.state_dict()
    tensors = {f"model.{name}": weights[name] for name in weights if name not in tied}
    for name, state in _optimiser_states(model, optimiser):
        tensors |= {f"optimiser.{name}.{key}": value for key, value in state.items()}
    tensors["generator"] = torch.get_rng_state()
    metadata = {"progress": json.dumps(progress.__dict__)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, metadata)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def load_state(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> Progress:
    """Put a written state into a model and its optimiser.

    Raises
    ------
    SafetensorError, OSError
        Where the file is not a whole one.
    KeyError, RuntimeError
        Where it is of another model.
    """
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        progress = Progress(**json.loads(file.metadata()["progress"]))
    tied = _tied_names(model)
    weights = _under("model.", tensors)
    model.load_state_dict(weights | {name: weights[first] for name, first in tied.items()})
    states = {name: _under(f"optimiser.{name}.", tensors) for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if states[name]:
            # AdamW counts its steps on the CPU wherever the parameter is.
            optimiser.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device)
                for key, value in states[name].items()
            }
    torch.set_rng_state(tensors["generator"])
    return progress


class CheckpointFolder:
    """The checkpoints of one training, in a folder of their own.

    The folder is named by the identity of the training: a digest of its parameters, its data
    and its code. A training with another identity has another folder, so nothing is ever
    continued by what did not begin it, and nothing is overwritten.
    """

    def __init__(self, root: Path, identity: str) -> None:
        self.path = root / identity[:16]

    def save(self, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress) -> None:
        """Write a checkpoint and let go of all but the newest ones."""
        save_state(self.path / f"step_{progress.step:09d}.safetensors", model, optimiser, progress)
        for old in self._files()[:-KEPT]:
            old.unlink()

    def resume(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> Progress | None:
        """Load the newest whole checkpoint; None where there is none."""
        for file in reversed(self._files()):
            try:
                progress = load_state(file, model, optimiser)
            except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
                log.warning("%s cannot be used (%s); trying the one before it", file, error)
                continue
            log.info("continuing from %s", file)
            return progress
        return None

    def _files(self) -> list[Path]:
        return sorted(self.path.glob("step_*.safetensors"))


def _optimiser_states(
    model: nn.Module, optimiser: torch.optim.Optimizer
) -> Iterable[tuple[str, Mapping[str, Tensor]]]:
    for name, parameter in model.named_parameters():
        if parameter in optimiser.state:
            yield name, optimiser.state[parameter]


def _tied_names(model: nn.Module) -> dict[str, str]:
    """Give the names of weights that are another's once more, such as a tied head's."""
    names: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {name: first for first, *others in names.values() for name in others}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
