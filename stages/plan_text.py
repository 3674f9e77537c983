"""A plan as text: tables of trainings, of a GPU's memory and of storage, and what to change."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from implicit_models.cost.devices import Accelerator, accelerator
from implicit_models.planning.plans import RUNTIME_BYTES, USABLE_PART, Layout, plan_storage
from implicit_models.problems.problem import parameters_of
from stages.entries import RunParameters
from stages.plan_entries import EXPECTED_PART, PlannedPhase
from stages.plan_parameters import PlanParameters

SECONDS_A_DAY = 86_400
SHORT_STEP_SECONDS = 0.01

ENVIRONMENT = ("MICRO_BATCH", "CHECKPOINTING", "PARALLELISM")

# Parts of a `MemoryPlan`, in the order of the table.
MEMORY = {
    "weights": "weights, float32",
    "gathered": "all weights, gathered",
    "copies": "copy of the weights, bfloat16",
    "normalised": "normalised weights",
    "moments": "AdamW's two moments",
    "gradients": "gradients, float32",
    "waiting_gradients": "gradients, on their way",
    "runtime": "CUDA, NCCL (assumed)",
    "injection": "injection, points found",
    "activations": "activations kept",
    "search": "or: search",
    "loss": "or: logits and loss",
    "backward": "or: backward of a block",
    "exchange": "or: buffers of the exchange",
}

_UNITS = {"days": 1, "hours": 24, "minutes": 24 * 60, "seconds": SECONDS_A_DAY}  # in a day


def plan_text(
    source: str,
    options: PlanParameters,
    planned: Sequence[PlannedPhase],
    others: Sequence[str],
) -> str:
    """Return the whole plan.

    Raises
    ------
    DeviceFactsError
        Where the device is not known.
    """
    device = accelerator(options.device)
    blocks = [
        [_title(source, options, device)],
        _trainings(planned, options, device),
        _memory(planned, device),
        _changes(planned, device),
        _storage(planned, options),
        _assumptions(planned, options, device),
    ]
    if others:
        blocks.append([f"Not planned, for want of a closed form: {', '.join(others)}"])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def gpu_hours(planned: Sequence[PlannedPhase], options: PlanParameters) -> tuple[float, float]:
    """Return the hours of a GPU that all trainings together take, as expected and at most.

    Raises
    ------
    DeviceFactsError
        Where the device is not known.
    """
    device = accelerator(options.device)
    hours = 24 * options.gpus
    rates = [_flops_a_day(phase, options, device) for phase in planned]
    expected = [phase.plan.flops / rate for phase, rate in zip(planned, rates, strict=True)]
    most = [phase.plan.flops_at_most / rate for phase, rate in zip(planned, rates, strict=True)]
    return hours * sum(expected), hours * sum(most)


def _title(source: str, options: PlanParameters, device: Accelerator) -> str:
    gpus = f"{options.gpus} x {device.name}"
    spread = f"{options.parallelism}, " if options.gpus > 1 else ""
    return f"{source} on {gpus}, {spread}checkpointing: {options.checkpointing}"


def _trainings(
    planned: Sequence[PlannedPhase], options: PlanParameters, device: Accelerator
) -> list[str]:
    total, most = (hours / 24 / options.gpus for hours in gpu_hours(planned, options))
    unit = next((unit for unit, in_a_day in _UNITS.items() if most * in_a_day >= 1), "seconds")
    in_a_day = _UNITS[unit]
    header = ("", "training", "phase", "parameters", "steps", "tokens", "FLOPs", unit)
    rows: list[Sequence[str]] = [(*header, "iterations", "most FLOPs", f"most {unit}")]
    for number, phase in enumerate(planned, 1):
        plan, rate = phase.plan, _flops_a_day(phase, options, device)
        searches = phase.expected is not None and phase.search
        rows.append(
            (
                f"[{number}]",
                phase.entry,
                phase.name,
                _count(phase.num_parameters),
                f"{plan.num_steps:,}",
                _count(plan.num_tokens),
                f"{plan.flops:.3g}",
                _number(in_a_day * plan.flops / rate),
                f"{phase.expected:g} of {phase.search}" if searches else "",
                f"{plan.flops_at_most:.3g}" if searches else "",
                _number(in_a_day * plan.flops_at_most / rate) if searches else "",
            )
        )
    of_gpus = "hours" if unit == "days" else unit
    lines = _aligned(rows, left=3)
    lines.append(
        f"together {_number(in_a_day * total)} {unit} ({_number(in_a_day * most)} at most), "
        f"{_count(_UNITS[of_gpus] * options.gpus * total)} GPU {of_gpus}"
    )
    return lines


def _memory(planned: Sequence[PlannedPhase], device: Accelerator) -> list[str]:
    numbers = [f"[{number}]" for number in range(1, len(planned) + 1)]
    rows: list[Sequence[str]] = [("memory of a GPU, GB", *numbers)]

    def add(label: str, value: Callable[[PlannedPhase], float]) -> None:
        found = [value(phase) for phase in planned]
        if any(found):
            rows.append((label, *(_gigabytes(each) for each in found)))

    for name, label in MEMORY.items():
        add(label, lambda phase, name=name: getattr(phase.plan.memory, name))
    add("peak: with the largest of 'or:'", lambda phase: phase.plan.memory.peak)
    memory = device.memory_bytes
    fits = ["yes" if phase.plan.memory.fits(memory) else "NO" for phase in planned]
    rows.append((f"fits into {_gigabytes(memory)} GB", *fits))
    at_once = [str(phase.layout.at_once(phase.batch_size)) for phase in planned]
    rows.append(("sequences at once", *at_once))
    rows.append(("tokens of each", *(str(phase.length) for phase in planned)))
    return _aligned(rows, left=1)


def _changes(planned: Sequence[PlannedPhase], device: Accelerator) -> list[str]:
    """Return what to change where something does not fit: the first layout that does."""
    found: dict[Layout | None, list[str]] = {}
    for number, phase in enumerate(planned, 1):
        if not phase.plan.memory.fits(device.memory_bytes):
            layout = phase.first_layout_that_fits(device.memory_bytes)
            found.setdefault(layout, []).append(f"[{number}]")
    lines = []
    for layout, numbers in found.items():
        if layout is None:
            lines.append(
                f"{' '.join(numbers)} fit in no way, not even with a GPU for each sequence of a "
                "step: take a device with more memory"
            )
        else:
            lines.append(f"{' '.join(numbers)} would fit with {_as_options(layout)}")
    if lines:
        names = ", ".join(f"IMPLICIT_MODELS_{name}" for name in ENVIRONMENT)
        lines.append(f"(a training takes the first three as {names})")
    return lines


def _storage(planned: Sequence[PlannedPhase], options: PlanParameters) -> list[str]:
    rows: list[Sequence[str]] = [
        ("storage, GB", "a checkpoint", "output of bounded", "final model", "ids read")
    ]
    drawn: dict[str, float] = {}
    for name in dict.fromkeys(phase.entry for phase in planned):
        phases = [phase for phase in planned if phase.entry == name]
        first = phases[0]
        storage, entry = plan_storage(first.config), first.training.entry
        tokens = sum(phase.plan.num_tokens for phase in phases)
        ids = np.min_scalar_type(first.config.vocab_size - 1).itemsize * tokens
        is_run = isinstance(entry, RunParameters)
        rows.append(
            (
                name,
                _gigabytes(storage.checkpoint),
                _gigabytes(storage.model + storage.checkpoint) if is_run else "",
                _gigabytes(storage.model),
                _gigabytes(ids),
            )
        )
        if parameters_of(first.training.data.kind).IS_TEXT:
            rows_read = sum(phase.plan.num_steps * phase.batch_size for phase in phases)
            drawn.setdefault(  # runs come first
                entry.dataset, rows_read * first.training.row_length
            )
    lines = _aligned(rows, left=1)
    for dataset, tokens in drawn.items():
        text = _gigabytes(options.text_bytes * tokens)
        lines.append(
            f"{dataset}: about {text} GB of text, where it is just long enough for the first of "
            "these to read no token twice"
        )
    return lines


def _assumptions(
    planned: Sequence[PlannedPhase], options: PlanParameters, device: Accelerator
) -> list[str]:
    lines = [
        "Assumed:",
        f"- {options.utilisation:.0%} of the vendor's dense FLOPs a second (utilisation=)",
        "- FLOPs are those of matrix products: attention as the whole square, what is evaluated",
        "  again counted again, validation left out",
        f"- {_gigabytes(RUNTIME_BYTES)} GB that no tensor holds, and {1 - USABLE_PART:.0%} of the "
        "memory lost to fragments; kernels: fused",
        f"- {options.text_bytes:g} bytes of text for each token (text_bytes=)",
    ]
    published = {phase.training.entry.dataset: phase.vocabulary for phase in planned}
    lines += [
        f"- {dataset}: a vocabulary of {vocabulary.size}, the published one: its files were not "
        "read (vocabulary=)"
        for dataset, vocabulary in published.items()
        if vocabulary.is_published
    ]
    short = [
        f"[{number}]"
        for number, phase in enumerate(planned, 1)
        if _step_seconds(phase, options, device) < SHORT_STEP_SECONDS
    ]
    if short:
        which = "all trainings" if len(short) == len(planned) else " ".join(short)
        lines += [
            f"- nothing but FLOPs takes time. In {which} those of a step take less than "
            f"{1000 * SHORT_STEP_SECONDS:.0f} ms,",
            "  and starting its kernels, which is not counted, takes longer: expect more time",
        ]
    if any(phase.expected != phase.search for phase in planned):
        given = options.expected_iterations
        expected = f"{EXPECTED_PART:.0%} of max_steps" if given is None else f"{given:g}"
        lines += [
            f"- self-iterations of the free phase's searches: {expected} (expected_iterations=);",
            "  searches of other phases, and those whose tolerance cannot be met, make all of them",
        ]
    if any(phase.phase is not None and phase.phase.penalty is not None for phase in planned):
        lines.append("- no memory for the Jacobian penalty, whose FLOPs are counted")
    return lines


def _flops_a_day(phase: PlannedPhase, options: PlanParameters, device: Accelerator) -> float:
    peak = device.peak_flops(getattr(torch, phase.precision))
    assert peak is not None
    return options.gpus * peak * options.utilisation * SECONDS_A_DAY


def _step_seconds(phase: PlannedPhase, options: PlanParameters, device: Accelerator) -> float:
    days = phase.plan.flops / _flops_a_day(phase, options, device)
    return days * SECONDS_A_DAY / phase.plan.num_steps


def _as_options(layout: Layout) -> str:
    """Return a layout as options of the plan."""
    return (
        f"micro_batch={layout.micro_batch} checkpointing={layout.checkpointing} "
        f"parallelism={layout.parallelism} gpus={layout.num_gpus}"
    )


def _count(number: float) -> str:
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:.3g}"


def _number(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.2g}" if number < 1 else f"{number:.1f}"


def _gigabytes(number: float) -> str:
    return "" if not number else _number(number / 1e9)


def _aligned(rows: Iterable[Sequence[str]], *, left: int) -> list[str]:
    """Align columns, the first so many to the left and the others to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
