"""What a process of `make fuzz` does."""

import collections
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import seed as seeded

from tests.fuzz import damage_cases, parameter_cases
from tests.fuzz.answers import MOST_SECONDS, ask_reader
from tests.fuzz.project import make_project, write_accepted

Found = tuple[collections.Counter[str], list[str]]


def fuzz_parameters(number: int, seed: int) -> Found:
    """Ask stages to read this many parameter files."""
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    base = parameter_cases.base()

    @seeded(seed)
    @parameter_cases.generated(number)
    @given(parameter_cases.cases(base))
    def try_all(case: parameter_cases.Case) -> None:
        Path("params.yaml").write_bytes(case.text)
        answer = ask_reader(case.stage, case.name)
        kind = "slow" if answer.seconds > MOST_SECONDS else answer.kind
        counts[kind] += 1
        if kind in ("slow", "failed"):
            kept = Path(tempfile.mkdtemp(prefix="fuzz_")) / "params.yaml"
            kept.write_bytes(case.text)
            last = answer.said.strip().splitlines()[-1:]
            wrong.append(f"{kind}: {case.stage} {case.name} with {kept}: {last}")

    with in_folder() as folder:
        write_accepted(folder, base)
        try_all()
    return counts, wrong


def fuzz_files(preset: str, part: int, parts: int) -> Found:
    """Damage a part of the files of a preset that was made tiny and has come to its report."""
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    with in_folder() as folder, pytest.MonkeyPatch.context() as patch:
        project, fresh = folder / "project", folder / "fresh"
        make_project(project, preset, patch)
        fresh.mkdir()
        patch.chdir(fresh)
        for number, case in enumerate(damage_cases.cases(project)):
            if number % parts == part:
                kind, line = damage_cases.judged(project, case, fresh)
                counts[kind] += 1
                wrong += [line] if line else []
    return counts, wrong


@contextlib.contextmanager
def in_folder() -> Iterator[Path]:
    """Work in a new folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="fuzz_") as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
