"""A kind of problem and a family from elsewhere, each by its own files and one entry."""

import functools
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest
import yaml

from implicit_models.families.table import FAMILIES
from implicit_models.parameters.composition import compose
from implicit_models.problems.table import KINDS
from implicit_models.tracking.opening import open_tracker
from stages.check import check_text
from stages.common import run_stage
from tests.repositories import ROOT
from tests.stages.commands import STAGES

LENGTHS = {"minimum": 4, "start": 4, "end": 8, "growth_steps": 2}
ENTRY = {
    "dataset": "bits",
    "seed": 0,
    "model": {"family": "elman", "num_layers": 1, "d_model": 8, "d_state": 6},
    "optimisation": {
        **{"learning_rate": 0.003, "clip_norm": 1.0, "batch_size": 4, "warmup_steps": 0},
    },
}
RUN = {
    **ENTRY,
    "model": {**ENTRY["model"], "implicit": True},
    "bounded": {"num_training_steps": 2, "num_self_iterations": 2, "lengths": LENGTHS},
    "free": {
        **{"num_training_steps": 2, "tolerance": 0.1, "max_steps": 4, "phantom_steps": 1},
        **{"damping": 0.8, "decay_steps": 1, "lengths": LENGTHS},
    },
}
BASELINE = {
    **ENTRY,
    "training": {"num_training_steps": 2, "decay_steps": 1, "lengths": LENGTHS},
}
SEARCH = {"window": 4, "patience": 1, "max_steps": 8, "damping": 0.8}
PARAMETERS = {
    **{table: {} for table in ("corpora", "hub_corpora", "tasks", "hub_tasks", "upcycled")},
    **{table: {} for table in ("matched", "benchmarks", "readings")},
    "datasets": {"bits": {"kind": "parity", "num_sequences": 8, "length": 8, "seed": 0}},
    "runs": {"implicit": RUN},
    "baselines": {"explicit": BASELINE},
    "monitoring": {
        **{"log_every": 1, "validate_every": 1, "validation_sequences": 8},
        "checkpoint_every": 1,
    },
    "evaluation": {"parity": {"num_sequences": 8, "tolerance": 0.1, **SEARCH}},
    "sweep": {
        "parity": {
            **{"length": 8, "num_sequences": 4, "self_iterations": [1, 2]},
            **{"tolerances": [0.5, 0.1], **SEARCH},
        }
    },
    "report": {"success_threshold": 0.9},
}


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setitem(KINDS, "parity", "tests.problems.parity")
    monkeypatch.setitem(FAMILIES, "elman", "tests.families.elman.parameters:ElmanParameters")
    monkeypatch.setattr("stages.tracked.open_tracker", functools.partial(open_tracker, send=False))
    monkeypatch.setattr("stages.report.tracked_run_id", lambda *_: None)
    write(PARAMETERS)


def write(parameters: dict) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(parameters, sort_keys=False))


def run(stage: str, name: str = "") -> None:
    importlib.import_module(f"stages.{stage}").main(name)


def test_they_go_from_their_data_to_the_report():
    run("code")
    counted = Path("code/train/implicit").read_text()
    for place in ("tests/problems/parity/data", "tests/families/elman/family.py"):
        assert place in counted
    assert "problems/word_problem" not in counted and "families/llama" not in counted
    run("prepare", "bits")
    run("training.train_bounded", "implicit")
    run("training.train_free", "implicit")
    run("training.train_baseline", "explicit")
    run("evaluation.sweep_test_time_compute", "implicit")
    for name in ("implicit", "explicit"):
        run("evaluation.evaluate_benchmarks", name)
    run("report")
    summary = json.loads(Path("results/summary.json").read_text())
    evaluated = json.loads(Path("results/runs/implicit/evaluation.json").read_text())
    assert summary["runs"]["implicit"]["parity_accuracy"] == evaluated["parity_accuracy"]
    assert summary["runs"]["implicit"]["data"] == "parity"
    assert summary["success"]["explicit"]["length"] == 8
    swept = json.loads(Path("results/runs/implicit/test_time_compute.json").read_text())
    assert swept["num_sequences"] == 4
    report = Path("results/report.md").read_text()
    assert "**Parity: implicit (implicit) has " in report
    assert "Accuracy against the allowed self-iterations" in report
    assert "1 implicit model and 1 explicit one." in report
    assert "## Parity of 8 bits" in report and "| implicit | implicit |" in report
    assert Path("results/figures/bits_training_curves.svg").exists()


@pytest.mark.parametrize(
    ("stage", "name", "change", "words"),
    [
        ("prepare", "bits", {"datasets": {"bits": {"num_sequences": 7}}}, "num_sequences = 7"),
        (
            "prepare",
            "bits",
            {"datasets": {"bits": {"kind": "paritty"}}},
            "kind = 'paritty'.*parity",
        ),
        (
            "training.train_free",
            "implicit",
            {"runs": {"implicit": {"free": {"lengths": {"end": 9}}}}},
            r"lengths.end = 9 .* at most datasets.bits.length, 8",
        ),
        (
            "evaluation.evaluate_benchmarks",
            "explicit",
            {"evaluation": {"parity": {"num_sequences": 10}}},
            "more than datasets.bits.num_sequences",
        ),
        (
            "evaluation.sweep_test_time_compute",
            "implicit",
            {"sweep": {"parity": {"lenght": 8}}},
            "sweep.parity.lenght = 8 is not a known setting; .* sweep.parity.length",
        ),
    ],
)
def test_its_mistakes_are_named_like_any(stage, name, change, words, monkeypatch, capsys):
    write(merged(PARAMETERS, change))
    monkeypatch.setattr(sys, "argv", [stage, name])
    with pytest.raises(SystemExit):
        run_stage(importlib.import_module(f"stages.{stage}").main, *STAGES[stage])
    assert re.search(words, capsys.readouterr().err)


def merged(parameters: dict, change: dict) -> dict:
    return parameters | {
        key: merged(parameters[key], value) if isinstance(parameters.get(key), dict) else value
        for key, value in change.items()
    }


def test_the_reference_has_its_parameters():
    """`scripts/parameter_reference.py` is a new problem's last step."""
    reference = run_path(str(ROOT / "scripts" / "parameter_reference.py"))["reference"]()
    for name in ("datasets.NAME", "evaluation.parity", "sweep.parity"):
        assert f"## {name}" in reference
    assert "Sequences of the test split to read." in reference


def test_the_preset_of_the_how_to_is_right(tmp_path):
    page = (ROOT / "docs" / "architecture.md").read_text()
    (preset,) = re.findall(r"```yaml\n(# @package _global_\n.*?)```", page, re.S)
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "conf" / "preset" / "bits.yaml").write_text(preset)
    found = check_text(compose(tmp_path, ["preset=bits"]), "bits")
    assert [each.line for each in found] == ["bits: datasets.s3 is read by no entry"]


def test_a_copy_of_it_passes_the_checks_of_the_house(tmp_path):
    copied = tmp_path / "implicit_models" / "problems" / "bits"
    shutil.copytree(ROOT / "tests" / "problems" / "parity", copied)
    for file in copied.rglob("*.py"):
        new_name = "implicit_models.problems.bits"
        file.write_text(file.read_text().replace("tests.problems.parity", new_name))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for check in (("check", "--fix"), ("check",), ("format", "--check")):
        command = [sys.executable, "-m", "ruff", *check, "--no-cache", "implicit_models"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_nobody_else_names_a_problem():
    """Outside its folder and the tables, no file of ours says what a kind of problem is called."""
    for folder in ("implicit_models", "stages"):
        for file in (ROOT / folder).rglob("*.py"):
            path = file.relative_to(ROOT).as_posix()
            if path.startswith("implicit_models/problems/"):
                continue
            found = re.findall(r"problems\.(?:word_problem|text|downstream)\b", file.read_text())
            assert not found, path
