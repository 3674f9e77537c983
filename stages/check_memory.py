"""Whether a step of a training has room in this machine's memory, by the plan of it."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stages.check_findings import Findings, gigabytes
from stages.entries import BaselineParameters, RunParameters
from stages.training.launching import TORCHRUN

if TYPE_CHECKING:
    from implicit_models.language_models.configuration import ImplicitConfig
    from implicit_models.planning.plans import Layout, MemoryPlan
    from implicit_models.training.curriculum import Segment

_TRAINED_BYTES = 16  # weights, gradients and two moments of a parameter
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container
_MICRO_BATCH, _CHECKPOINTING = "IMPLICIT_MODELS_MICRO_BATCH", "IMPLICIT_MODELS_CHECKPOINTING"


@dataclass(frozen=True)
class Trained:
    """A model of some size, as far as it is known before it is trained.

    Attributes
    ----------
    key
        Of its entry.
    num_bytes
        What its training leaves on the disk.
    """

    key: str
    entry: RunParameters | BaselineParameters
    config: "ImplicitConfig"
    num_parameters: int
    num_bytes: float


@dataclass(frozen=True)
class _Room:
    """The memory that there is, where a model is trained here.

    Attributes
    ----------
    num_bytes, usable
        All, and how much of it tensors can have.
    where
        What has it, as a message begins.
    runtime
        What no tensor holds.
    """

    num_bytes: float
    usable: float
    where: str
    runtime: int


def main_memory() -> int:
    """Return the bytes of this machine's memory, or those that its container may have."""
    import psutil

    total = psutil.virtual_memory().total
    limit = _LIMIT.read_text().strip() if _LIMIT.exists() else ""
    return min(total, int(limit)) if limit.isdecimal() else total


def sequences_at_once(entry: RunParameters | BaselineParameters, length: int) -> int:
    """Return how many sequences of a step one process has in hand, by the environment."""
    share, given = entry.optimisation.sequences_a_step(length), os.environ.get(_MICRO_BATCH, "")
    return min(share, int(given)) if given.isdecimal() and int(given) else share


def check_memory(found: Findings, models: Sequence[Trained]) -> None:
    """Find the training that needs the most of all that do not fit; a warning."""
    from implicit_models.language_models.placement import DeviceError

    try:
        room = _room()
    except DeviceError as error:
        found.add(error, "missing")
        return
    several = bool(os.environ.get(TORCHRUN))  # of which each has a share that is not known here
    told = {each.key: _bound(each, room) if several else _need(each, room) for each in models}
    lines = {key: line for key, line in told.items() if line is not None}
    if lines:
        key = max(lines, key=lambda key: lines[key][0])
        others = len(lines) - 1
        more = f" ({others} other {'entries do' if others > 1 else 'entry does'} not fit either)"
        found.add(f"{key}: {lines[key][1]}{more if others else ''}", "warning")


def _room() -> _Room:
    import torch

    from implicit_models.language_models.placement import default_device
    from implicit_models.planning.plans import RUNTIME_BYTES, USABLE_PART

    device = default_device()
    if device.type != "cuda":
        there = main_memory()
        return _Room(there, there, "this machine has", 0)
    there = torch.cuda.get_device_properties(device).total_memory
    return _Room(there, USABLE_PART * there, "a GPU here has", RUNTIME_BYTES)


def _bound(each: Trained, room: _Room) -> tuple[float, str] | None:
    """Return what a model takes whatever is done, in words, where that is too much."""
    needed = _TRAINED_BYTES * each.num_parameters
    if needed <= room.usable:
        return None
    return needed, (
        f"weights, gradients and moments of {each.num_parameters:,} parameters take "
        f"{gigabytes(needed)}, and {room.where} {gigabytes(room.num_bytes)}; "
        "`python -m stages.plan` says what would do"
    )


def _need(each: Trained, room: _Room) -> tuple[float, str] | None:
    """Return what the phase takes that needs most, in words, where that is too much."""
    try:
        planned = [(_plan(each, phase, _layout(), room), phase) for phase in _phases(each)]
    except ValueError:  # a gradient that solves in the backward pass has no plan
        return _bound(each, room)
    plan, phase = max(planned, key=lambda found: found[0].peak)
    if plan.peak <= room.usable:
        return None
    length = phase.lengths.end
    at_once = sequences_at_once(each.entry, length)
    return plan.peak, (
        f"a step of {at_once} sequences of {length:,} tokens at once ({phase.name}) takes "
        f"{gigabytes(plan.peak)} at least, {gigabytes(plan.activations)} of them kept for the "
        f"backward pass, and {room.where} {gigabytes(room.num_bytes)}; {_way_out(each, room)}"
    )


def _way_out(each: Trained, room: _Room) -> str:
    from implicit_models.planning.plans import fitting_layouts

    phases = list(_phases(each))
    most = max(each.entry.optimisation.sequences_a_step(phase.lengths.end) for phase in phases)
    is_implicit = any(phase.phase is not None for phase in phases)
    for layout in fitting_layouts(_layout(), most, is_implicit=is_implicit):
        if layout.num_gpus > 1:
            break
        if all(_plan(each, phase, layout, room).peak <= room.usable for phase in phases):
            chosen = [f"{_MICRO_BATCH}={layout.micro_batch}"]
            if layout.checkpointing != "none":
                chosen.append(f"{_CHECKPOINTING}={layout.checkpointing}")
            return f"{' '.join(chosen)} makes it fit; results are the same but for rounding"
    return "nothing makes it fit here: `python -m stages.plan` says on how many GPUs it would"


def _phases(each: Trained) -> "Iterator[Segment]":
    from stages.plan_entries import segments

    yield from segments(each.entry)


def _layout() -> "Layout":
    from implicit_models.planning.plans import CHECKPOINTING, Layout

    given = os.environ.get(_MICRO_BATCH, "")
    kind = os.environ.get(_CHECKPOINTING, "none")
    return Layout(
        micro_batch=int(given) or None if given.isdecimal() else None,
        checkpointing=kind if kind in CHECKPOINTING else "none",
    )


def _plan(each: Trained, segment: "Segment", layout: "Layout", room: _Room) -> "MemoryPlan":
    from implicit_models.planning.plans import plan_memory

    optimisation, length = each.entry.optimisation, segment.lengths.end
    plan = plan_memory(
        each.config,
        segment.phase,
        length=length,
        batch_size=optimisation.sequences_a_step(length),
        precision=optimisation.precision,
        layout=layout,
    )
    return dataclasses.replace(plan, runtime=room.runtime)
