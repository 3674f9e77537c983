"""Whether what the parameters ask for has room on this machine: its disk, and its memory."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from implicit_models.parameters import read_content
from implicit_models.problems import problem
from implicit_models.problems.table import TABLES as DATA_TABLES
from stages.check_findings import Findings, gigabytes
from stages.check_memory import Trained, check_memory, main_memory, sequences_at_once
from stages.common import TABLES, read_data, read_dataset
from stages.entries import BaselineParameters, RunParameters, read_model

# Smaller models, of any family, leave files that no disk is too small for; sizes need torch.
_LARGE = 20_000_000
# What a block keeps of a token, at least, in numbers of its width; a step for which this comes to
# less than a part of the memory is not looked at either.
_KEPT_BYTES, _PART = 64, 1 / 8


def check_machine(found: Findings) -> None:
    """Find what does not fit: nothing runs where the disk is too small, memory is a warning."""
    large = list(_large_models(found.path))
    _check_disk(found, large)
    if large:
        check_memory(found, large)


def _check_disk(found: Findings, large: Sequence[Trained]) -> None:
    # What is there already takes no more room.
    needed = {
        each.key: each.num_bytes
        for each in large
        if not Path("models", each.key.rpartition(".")[2], "final").exists()
    }
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
            f"data and models take {gigabytes(total)} at least, {most} alone "
            f"{gigabytes(needed[most])}, and the disk has {gigabytes(free)} free; make room, or "
            "ask for less (`python -m stages.plan` says what each model takes)",
            "missing",
        )


def _large_models(path: Path) -> Iterator[Trained]:
    content = read_content(path)
    for table in TABLES:
        for name in content.get(table) or ():
            entry = read_model(table, name, path)
            if entry.model.is_planned and _is_large(entry):
                data = read_dataset(table, name, path)
                size = problem.checks_of(data.kind).known_vocabulary(data.parameters)
                if size is not None:
                    yield _trained(f"{table}.{name}", entry, size)


def _is_large(entry: RunParameters | BaselineParameters) -> bool:
    """Return whether its size or its steps are worth the seconds that torch takes to say them."""
    num_layers, width = (getattr(entry.model, key) for key in ("num_layers", "d_model"))
    if 6 * num_layers * width**2 > _LARGE:
        return True
    length = entry.training_length
    tokens = length * sequences_at_once(entry, length)
    return tokens * num_layers * width * _KEPT_BYTES > _PART * main_memory()


def _trained(key: str, entry: RunParameters | BaselineParameters, vocabulary_size: int) -> Trained:
    from implicit_models.families.building import configuration
    from implicit_models.families.sizes import count_parameters
    from implicit_models.language_models.configuration import ImplicitConfig
    from implicit_models.planning.plans import plan_storage

    config = configuration(entry.model, vocabulary_size)
    assert isinstance(config, ImplicitConfig)
    storage = plan_storage(config)
    # A checkpoint while it trains and, of two phases, the state between them.
    num_phases = len(entry.curricula)
    num_bytes = num_phases * (storage.model + storage.checkpoint)
    return Trained(key, entry, config, count_parameters(config).total, num_bytes)
