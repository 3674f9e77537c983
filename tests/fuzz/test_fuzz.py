"""A part of `make fuzz`: odd parameters, and damaged files, are refused in a line or do no harm."""

import random
from pathlib import Path

import pytest
from hypothesis import given

from tests.fuzz import damage_cases, parameter_cases
from tests.fuzz.answers import MOST_SECONDS, ask_reader
from tests.fuzz.project import write_accepted
from tests.stages.in_process import send_nothing

NUM_DAMAGED = 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning"),  # DVC's
]


def test_parameters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = parameter_cases.base()
    write_accepted(tmp_path, base)
    refused = 0

    @parameter_cases.generated(300, derandomize=True)
    @given(parameter_cases.cases(base))
    def answered(case: parameter_cases.Case) -> None:
        nonlocal refused
        Path("params.yaml").write_bytes(case.text)
        answer = ask_reader(case.stage, case.name)
        assert answer.kind in ("done", "refused"), answer.said
        assert answer.seconds < MOST_SECONDS
        refused += answer.kind == "refused"

    answered()
    assert refused > 100
    assert {path.name for path in tmp_path.iterdir()} == {"params.yaml", "tasks", "text"}


def test_damaged_files(tiny_project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    send_nothing(monkeypatch)
    cases = list(damage_cases.cases(tiny_project))
    kinds = {case.stage.kind for case in cases}
    assert {"train_bounded", "train_free", "train_baseline", "sweep_test_time_compute"} <= kinds
    judged = [
        damage_cases.judged(tiny_project, case, tmp_path)
        for case in random.Random(0).sample(cases, NUM_DAMAGED)
    ]
    assert [line for _, line in judged if line] == []
    assert sum(kind == "refused" for kind, _ in judged) > NUM_DAMAGED // 5
