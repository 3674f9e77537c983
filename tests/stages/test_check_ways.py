"""Where the check stands in the way: composing, the stage `code`, flows, sweeps, by hand."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from implicit_models.parameters import ParameterError
from implicit_models.parameters.composition import compose
from pipelines.handing_over import mistake
from pipelines.presets import parameters_for
from pipelines.sweeps.points import Origin, plan
from stages.check_findings import Finding
from stages.common import run_stage
from tests.pipelines.writing import write_parameters
from tests.repositories import ROOT

RUN = "runs.s3_implicit_mamba2"
WRONG = {"sweep.word_problem.length": 25, f"{RUN}.seed": "abc"}
SAID = ("sweep.word_problem asks for test sequences of length 25", f"{RUN}.seed = 'abc'")
OLD = "runs: {}  # what was there\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of ours with a preset that is wrong and one that is right."""
    for name in ("implicit_models", "stages"):
        (tmp_path / name).symlink_to(ROOT / name)
    presets = tmp_path / "conf" / "preset"
    presets.mkdir(parents=True)
    for name in ("config.yaml", "shared", "models"):
        (tmp_path / "conf" / name).symlink_to(ROOT / "conf" / name)
    for name in ("quick", "laptop"):
        (presets / f"{name}.yaml").symlink_to(ROOT / "conf" / "preset" / f"{name}.yaml")
    content: dict = {"defaults": ["quick", "_self_"]}
    for key, value in WRONG.items():
        *path, last = key.split(".")
        section = content
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    (presets / "wrong.yaml").write_text(f"# @package _global_\n{yaml.safe_dump(content)}")
    (tmp_path / "params.yaml").write_text(OLD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    return tmp_path


def composed_by_script(*arguments: str, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "compose.py", *arguments, "--output", output]
    return subprocess.run(command, capture_output=True, text=True)


def test_nothing_wrong_is_composed(repository):
    file = repository / "params.yaml"
    settings = [f"{key}={value}" for key, value in WRONG.items()]
    done = composed_by_script("quick", *settings, output=file)
    assert done.returncode == 2 and file.read_text() == OLD
    lines = done.stderr.splitlines()
    assert all(any(words in line for line in lines) for words in SAID)
    assert all(line.startswith("error: conf/preset/quick.yaml: ") for line in lines[:-1])
    assert lines[-1] == f"{file} is as it was"
    for arguments, words in (
        (("quik",), "there is no preset quik; the closest is quick"),
        (("quick", f"{RUN}.sede=1"), f"the closest valid key is {RUN}.seed"),
        (("quick", "preset=laptop"), "one preset is composed, and quick and laptop are named"),
        ((), "the following arguments are required: preset"),
    ):
        done = composed_by_script(*arguments, output=file)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
        assert file.read_text() == OLD


def test_a_text_may_come_after_its_preset(repository):
    file = repository / "params.yaml"
    done = composed_by_script("text_small", "corpora.text.source=nowhere", output=file)
    assert done.returncode == 0 and yaml.safe_load(file.read_text())["corpora"]
    assert (
        done.stderr.startswith("missing: ") and "under nowhere/train, nowhere/vali" in done.stderr
    )


def test_the_stage_code_ends_before_all_others(repository, monkeypatch, capsys):
    text = compose(repository, ["preset=wrong"])
    (repository / "params.yaml").write_text(text)
    monkeypatch.setattr(sys, "argv", ["code"])
    main = importlib.import_module("stages.code").main
    with pytest.raises(SystemExit) as stop:
        run_stage(main)
    lines = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and len(lines) == len(WRONG)
    assert all(any(words in line for line in lines) for words in SAID)
    assert all(line.startswith("error: params.yaml: ") for line in lines)
    assert not (repository / "code").exists()
    (repository / "params.yaml").write_text(compose(repository, ["preset=quick"]))
    run_stage(main)
    assert (repository / "code" / "sweep" / "s3_implicit_mamba2").exists()


def test_the_stage_code_passes_on_what_is_no_mistake(repository, monkeypatch, capsys, caplog):
    (repository / "params.yaml").write_text(compose(repository, ["preset=quick"]))
    monkeypatch.setattr(sys, "argv", ["code"])
    found = [Finding("params.yaml: it may be slow", "warning")]
    monkeypatch.setattr("stages.code.check_file", lambda: found)
    run_stage(importlib.import_module("stages.code").main)
    assert "warning: params.yaml: it may be slow" in caplog.messages
    assert (repository / "code" / "report").exists()


def test_what_an_entry_has_of_its_own_is_in_its_files_of_code(repository, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["code"])
    content = yaml.safe_load(compose(repository, ["preset=quick"]))

    def written() -> dict[str, str]:
        (repository / "params.yaml").write_text(yaml.safe_dump(content))
        run_stage(importlib.import_module("stages.code").main)
        files = [each for each in Path("code").rglob("*") if each.is_file()]
        return {each.relative_to("code").as_posix(): each.read_text() for each in files}

    before = written()
    content["runs"]["s3_implicit_mamba2"]["evaluation"] = {"num_sequences": 32}
    evaluated = written()
    content["runs"]["s3_implicit_mamba2"]["sweep"] = {"num_sequences": 16}
    swept = written()
    name = "s3_implicit_mamba2"
    assert {k for k in before if before[k] != evaluated[k]} == {f"evaluate/{name}"}
    assert {k for k in before if evaluated[k] != swept[k]} == {f"sweep/{name}"}


def test_a_flow_writes_no_wrong_parameters(repository, capsys):
    file = repository / "params.yaml"
    with pytest.raises(ParameterError) as error:
        write_parameters(repository, "wrong")
    assert file.read_text() == OLD
    with (
        pytest.raises(ParameterError),
        parameters_for(repository, "wrong", (1, 2)),
    ):
        pytest.fail("there are mistakes")
    assert file.read_text() == OLD
    assert mistake(error.value) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: conf/preset/wrong.yaml: ") for line in lines] == [True, True]
    file.write_text(compose(repository, ["preset=wrong"]))  # as somebody else has
    with (
        pytest.raises(ParameterError, match="length 25"),
        parameters_for(repository, None, ()),
    ):
        pytest.fail("there are mistakes")
    write_parameters(repository, "quick")
    with parameters_for(repository, None, ()):
        assert file.read_text() == compose(repository, ["preset=quick"])


def test_every_point_of_a_sweep_is_checked_before_the_first(repository):
    origin = Origin("0" * 40)
    settings = [f"{RUN}.free.lengths.end=10,12,14", f"{RUN}.free.max_steps=8,many"]
    with pytest.raises(ParameterError) as error:
        plan(repository, origin, "s", settings, "quick")
    lines = str(error.value).splitlines()
    assert any("end=14" in line and "at most datasets.s3.train.length" in line for line in lines)
    assert any("max_steps=many: " in line and "'many' is not" in line for line in lines)
    right = f"{RUN}.free.lengths.end=12 {RUN}.free.max_steps=8"
    assert not any(line.startswith(right) for line in lines)
    assert len(plan(repository, origin, "s", [f"{RUN}.seed=0,1"], "quick")) == 2


def test_by_hand_from_another_process(repository):
    given = json.dumps({"one": compose(ROOT, ["preset=quick"]), "two": OLD})
    command = [sys.executable, "-m", "stages.check"]
    done = subprocess.run([*command, "--given"], input=given, capture_output=True, text=True)
    assert done.returncode == 2 and "error: two: baselines does not exist" in done.stderr
    assert "one: " not in done.stderr
    done = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "python -m stages.check text_small" in done.stdout
