"""Whether what the parameters ask for has room on this machine: its disk, and its memory."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from implicit_models.parameters import read_content
from implicit_models.problems import problem
from implicit_models.problems.table import TABLES as DATA_TABLES
from stages.check_findings import Findings
from stages.common import TABLES, read_data, read_dataset
from stages.entries import BaselineParameters, RunParameters, read_model

# Smaller models, of any family, leave files that no disk is too small for; sizes need torch.
_LARGE = 20_000_000
_TRAINED_BYTES = 16  # weights, gradients and two moments of a parameter


@dataclass(frozen=True)
class _Trained:
    """A large model: its entry's key, its parameters, and the bytes that its training leaves."""

    key: str
    num_parameters: int
    num_bytes: float


def check_machine(found: Findings) -> None:
    """Find what does not fit: nothing runs where the disk is too small, memory is a warning."""
    large = list(_large_models(found.path))
    _check_disk(found, large)
    if large:
        _check_memory(found, max(large, key=lambda each: each.num_parameters))


def _check_disk(found: Findings, large: list[_Trained]) -> None:
    needed = {each.key: each.num_bytes for each in large}
    content = read_content(found.path)
    for table in DATA_TABLES:
        for name in content.get(table) or ():
            if not Path("data", name).exists():
                data = read_data(table, name, found.path)
                needed[data.key] = problem.checks_of(data.kind).data_bytes(data.parameters)
    total, free = sum(needed.values()), shutil.disk_usage(".").free
    if total > free:
        most = max(needed, key=needed.__getitem__)
        found.add(
            f"data and models take {_gigabytes(total)} at least, {most} alone "
            f"{_gigabytes(needed[most])}, and the disk has {_gigabytes(free)} free; make room, or "
            "ask for less (`python -m stages.plan` says what each model takes)",
            "missing",
        )


def _check_memory(found: Findings, largest: _Trained) -> None:
    import psutil
    import torch

    devices = range(torch.cuda.device_count())
    there = sum(torch.cuda.get_device_properties(each).total_memory for each in devices)
    where = f"the {len(devices)} GPUs here have" if there else "this machine has"
    there = there or psutil.virtual_memory().total
    needed = _TRAINED_BYTES * largest.num_parameters
    if needed > there:
        found.add(
            f"{largest.key}: weights, gradients and moments of {largest.num_parameters:,} "
            f"parameters take {_gigabytes(needed)}, and {where} {_gigabytes(there)}; "
            "`python -m stages.plan` says what would do",
            "warning",
        )


def _large_models(path: Path) -> Iterator[_Trained]:
    content = read_content(path)
    for table in TABLES:
        for name in content.get(table) or ():
            entry = read_model(table, name, path)
            if entry.model.is_planned and _rough_size(entry) > _LARGE:
                data = read_dataset(table, name, path)
                size = problem.checks_of(data.kind).known_vocabulary(data.parameters)
                if size is not None:
                    yield _trained(f"{table}.{name}", entry, size)


def _rough_size(entry: RunParameters | BaselineParameters) -> int:
    num_layers, width = (getattr(entry.model, key) for key in ("num_layers", "d_model"))
    return 6 * num_layers * width**2


def _trained(key: str, entry: RunParameters | BaselineParameters, vocabulary_size: int) -> _Trained:
    from implicit_models.families.building import configuration
    from implicit_models.families.sizes import count_parameters
    from implicit_models.planning.plans import plan_storage

    config = configuration(entry.model, vocabulary_size)
    storage = plan_storage(config)
    # A checkpoint while it trains and, of two phases, the state between them.
    num_phases = len(entry.curricula)
    num_bytes = num_phases * (storage.model + storage.checkpoint)
    return _Trained(key, count_parameters(config).total, num_bytes)


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:,.1f} GB"
