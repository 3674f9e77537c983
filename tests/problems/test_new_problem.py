"""A kind of problem and a family from elsewhere, each by its own files and one entry."""

import functools
import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
import yaml

from implicit_models.families.table import FAMILIES
from implicit_models.parameters import ParameterError
from implicit_models.problems.answers import TrainingData
from implicit_models.problems.table import KINDS
from implicit_models.tracking.opening import open_tracker
from stages.common import Data, run_stage
from stages.training.token_range import check_tokens
from tests.problems.parity.data import interface
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
    "datasets": {
        "bits": {"kind": "parity", "num_sequences": 8, "length": 8, "test_length": 8, "seed": 0}
    },
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


def test_code_that_dvc_would_not_notice_an_edit_of_is_refused():
    pipeline = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    watched = pipeline["stages"]["code"]["deps"]
    assert watched == ["implicit_models", "stages"]
    for added in ([], ["tests/problems"]):
        watched[2:] = added
        Path("dvc.yaml").write_text(yaml.safe_dump(pipeline))
        match = r"dvc.yaml: stages.code.deps = .* results depend on tests/.*: add tests$"
        with pytest.raises(ParameterError, match=match):
            run("code")
    watched[2:] = ["tests"]
    Path("dvc.yaml").write_text(yaml.safe_dump(pipeline))
    run("code")


@pytest.mark.parametrize("test_length", [8, 12])
def test_they_go_from_their_data_to_the_report(test_length):
    longer = {
        "datasets": {"bits": {"test_length": test_length}},
        "sweep": {"parity": {"length": test_length}},
    }
    write(merged(PARAMETERS, longer))
    run("code")
    counted = Path("code/train/implicit").read_text()
    for place in ("tests/problems/parity/data", "tests/families/elman/family.py"):
        assert place in counted
    assert "problems/word_problem" not in counted and "families/llama" not in counted
    run("prepare", "bits")
    for split in ("train", "validation"):  # which dvc.yaml names
        assert Path("data/bits", split).is_dir()
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
    swept = json.loads(Path("results/runs/implicit/test_time_compute.json").read_text())
    assert swept["num_sequences"] == 4
    report = Path("results/report.md").read_text()
    assert "**Parity: implicit (implicit) has " in report
    assert "Accuracy against the allowed self-iterations" in report
    assert "1 implicit model and 1 explicit one." in report
    assert f"## Parity of {test_length} bits" in report and "| implicit | implicit |" in report
    if test_length == 8:
        assert summary["success"]["explicit"]["length"] == 8
        assert "reads at least the threshold over all tokens." in report
    else:  # nobody knows whether a run has solved what it was trained on
        assert not summary["success"] and "Success rate" not in report
    assert Path("results/figures/bits_training_curves.svg").exists()


@pytest.mark.parametrize(
    ("stage", "name", "change", "words"),
    [
        (
            "prepare",
            "bits",
            {"datasets": {"bits": {"test_length": 7}}},
            "test_length = 7 is not allowed; allowed is at least datasets.bits.length, 8",
        ),
        (
            "prepare",
            "bits",
            {"datasets": {"bits": {"kind": "paritty"}}},
            r"kind = 'paritty' .*; the closest is 'parity'$",
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
            "num_sequences = 10 .* at most datasets.bits.num_sequences, 8",
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


def answers_of_three(bits: np.ndarray) -> np.ndarray:
    """Return the ones so far, modulo three: an answer more than there are tokens."""
    return (np.cumsum(bits, axis=1) % 3).astype(np.uint8)


def unasked_unsigned(bits: np.ndarray) -> np.ndarray:
    """Return labels that ask for nothing, in a dtype that has no such number."""
    return np.full_like(bits, -100 % 256)


@pytest.mark.parametrize(
    ("stage", "entry"),
    [("train_bounded", "runs.implicit"), ("train_baseline", "baselines.explicit")],
)
@pytest.mark.parametrize(("labels", "found"), [(answers_of_three, 2), (unasked_unsigned, 156)])
def test_answers_that_are_no_tokens_are_named_before_the_first_step(
    stage, entry, labels, found, monkeypatch, capsys
):
    """The model has but as many outputs as `vocabulary_size` says."""
    run("prepare", "bits")
    split = interface.split
    monkeypatch.setattr(
        interface,
        "split",
        lambda *of: split(*of)._replace(labels=labels(split(*of).inputs)),
    )
    monkeypatch.setattr(sys, "argv", [stage, entry.partition(".")[2]])
    module = importlib.import_module(f"stages.training.{stage}")
    with pytest.raises(SystemExit):
        run_stage(module.main, *STAGES[f"training.{stage}"])
    said = capsys.readouterr().err
    assert re.search(
        f"error: {entry}: datasets.bits, in data/bits, has {found} among the labels of its split "
        "train; allowed are -100 and 0 to 1. vocabulary_size, here 2, counts tokens and answers",
        said,
    )
    for file in ("parameters.py", "checks.py", "data/interface.py"):
        assert file in said


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("wrong", [-1, -100, 2])
def test_tokens_that_are_none_are_named(split, wrong):
    bits = np.zeros((4, 8), dtype=np.int64)
    sequences = {each: interface.Split(bits.copy(), bits - 100) for each in ("train", "validation")}
    data = TrainingData(
        train=sequences["train"],
        validation=sequences["validation"],
        vocabulary_size=2,
        label_alignment="aligned",
        identity=None,
        folder=Path("data/bits"),
        verify=lambda: None,
    )
    read = Data(table="datasets", name="bits", kind="parity", parameters=None)
    check_tokens("runs.implicit", read, data)
    sequences[split].inputs[2, 3] = wrong
    with pytest.raises(ParameterError, match=f"{wrong} among the inputs of its split {split}; "):
        check_tokens("runs.implicit", read, data)


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


@pytest.mark.parametrize("name", ["majority", "odd", "balanced_brackets"])
def test_the_how_to_makes_one_that_is_checked(tmp_path, name):
    """Its commands, lines and preset, in a copy of the project, with this and another name."""
    for folder in ("implicit_models", "stages", "conf", "tests/problems/parity"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    page = (ROOT / "docs" / "add_problem.md").read_text()
    page = page.replace("majority", name).replace("Majority", name.title().replace("_", ""))
    commands, line, module, _, preset, *_ = re.findall(r"```\w*\n(.*?)```", page, re.S)
    commands = commands.replace(".venv/bin/ruff", f"{sys.executable} -m ruff")

    def run(command: str, status: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-ec", f"{{ {command}\n}} 2>&1"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    run(commands)
    (tmp_path / "conf" / "preset" / f"{name}.yaml").write_text(preset)
    check = f"{sys.executable} -m stages.check {name}"
    unknown = run(check, 2)
    assert f"'{name}' is not allowed" in unknown and "problems/table.py" in unknown
    assert "the closest" not in unknown
    table = tmp_path / "implicit_models" / "problems" / "table.py"
    table.write_text(table.read_text().replace("KINDS = {\n", f"KINDS = {{\n{line}", 1))
    assert "warning" not in run(check)
    assert module.strip() == f'"implicit_models.problems.{name}",'
    run(f"{sys.executable} -m ruff check --no-cache implicit_models")
    run(f"{sys.executable} -m ruff format --check --no-cache implicit_models/problems/{name}")
    copied = (tmp_path / "implicit_models" / "problems" / name).rglob("*.py")
    assert not [file for file in copied if re.search("(?i)parit|tests", file.read_text())]


def test_kinds_of_problems_know_nothing_of_each_other():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (kinds,) = (
        contract["modules"]
        for contract in contracts["contracts"]
        if contract["name"] == "Kinds of problems know nothing of each other"
    )
    assert {*kinds} == {*KINDS.values()} - {"tests.problems.parity"}


def test_nobody_else_names_a_problem():
    """Outside its folder and the tables, no file of ours says what a kind of problem is called."""
    for folder in ("implicit_models", "stages"):
        for file in (ROOT / folder).rglob("*.py"):
            path = file.relative_to(ROOT).as_posix()
            if path.startswith("implicit_models/problems/"):
                continue
            found = re.findall(rf"problems\.(?:{'|'.join(KINDS)})\b", file.read_text())
            assert not found, path
