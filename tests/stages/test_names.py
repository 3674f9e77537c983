"""Names of entries that are no names of folders are refused on every way, and hurt nothing."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from implicit_models.parameters import (
    TABLES,
    ParameterError,
    check_names,
    read_content,
    read_section,
)
from implicit_models.parameters.composition import compose
from implicit_models.problems.word_problem.data.writing import write_splits
from implicit_models.problems.word_problem.parameters import WordProblemParameters
from pipelines.dag import read_dag
from pipelines.reproduce import main as reproduce
from pipelines.sweeps.points import SweepError
from pipelines.sweeps.points import compose as compose_point
from stages.common import run_stage
from tests.pipelines.writing import write_parameters
from tests.repositories import ROOT, Repository, clone, commit
from tests.stages.commands import STAGES

IMPLICIT = "runs.s3_implicit_mamba2"
OUTSIDE = "precious"  # a folder beside the repository
ALLOWED = "allowed are letters, digits, _ and -, with a letter or digit first"


def bad_names(folder: Path) -> list[str]:
    """Return absolute, relative, quoted, substituted and odd names."""
    return [
        str(folder / OUTSIDE),
        f"../../{OUTSIDE}",
        "../docs",
        "..",
        ".",
        "",
        "a/b",
        "a.b",
        "a b",
        "a\nb",
        "-a",
        "_a",
        ".hidden",
        "a;touch pwned",
        "$(touch pwned)",
        '"$(touch pwned)"',
        "'; touch pwned; '",
        "`touch pwned`",
        "a|touch pwned",
        "a&touch pwned",
        "~",
        "*",
        "a@b",
        "\u00e9",
    ]


@pytest.fixture(scope="module")
def quick() -> dict:
    return yaml.safe_load(compose(ROOT, ["preset=quick"]))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Work in an empty repository, beside which lies what nobody may remove."""
    (tmp_path / OUTSIDE / "train").mkdir(parents=True)
    (tmp_path / OUTSIDE / "train" / "kept").write_text("kept")
    path = tmp_path / "repository"
    path.mkdir()
    monkeypatch.chdir(path)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    return path


def renamed(parameters: dict, name: str, table: str = "datasets") -> str:
    """Return the text of a params.yaml in which a table's first entry has another name."""
    entries = dict(parameters[table])
    first = next(iter(entries), None)
    entry = entries.pop(first) if first is not None else {}
    return yaml.safe_dump({**parameters, table: {name: entry, **entries}}, sort_keys=False)


def unharmed(path: Path) -> bool:
    kept = path.parent / OUTSIDE / "train" / "kept"
    return kept.read_text() == "kept" and not list(path.rglob("pwned"))


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_refuses(stage, project, quick, monkeypatch, capsys):
    module = importlib.import_module(f"stages.{stage}")
    for name in bad_names(project.parent):
        Path("params.yaml").write_text(renamed(quick, name))
        for given in [name, "s3_implicit_mamba2"] if STAGES[stage] else [""]:
            monkeypatch.setattr(sys, "argv", [stage, *(["--", given] if STAGES[stage] else [])])
            with pytest.raises(SystemExit) as stop:
                run_stage(module.main, *STAGES[stage])
            assert stop.value.code == 2
            message = capsys.readouterr().err
            assert f"datasets has an entry named {name!r}" in message and ALLOWED in message
            assert message.count("\n") == 1
    assert os.listdir() == ["params.yaml"] and unharmed(project)


@pytest.mark.parametrize("table", TABLES)
def test_the_names_of_all_tables_are_checked(table, quick):
    check_names(yaml.safe_load(renamed(quick, "A5-x_2", table)))
    for name in ("../a", 1, None, True):
        with pytest.raises(ParameterError, match=f"^params.yaml: {table} has an entry named"):
            check_names(yaml.safe_load(renamed(quick, name, table)))


@pytest.mark.parametrize("table", ["!!omap [../docs: {}]", "[a, b]", "5", "name"])
def test_a_table_that_is_no_mapping_is_refused(table, project):
    Path("params.yaml").write_text(f"datasets: {table}\n")
    with pytest.raises(
        ParameterError,
        match="datasets = .* allowed is a table of named entries|the tag .* is not allowed",
    ):
        read_content(Path("params.yaml"))
    Path("params.yaml").write_text("datasets:\n")
    assert read_content(Path("params.yaml")) == {"datasets": None}


def test_a_number_is_a_name_in_quotes():
    with pytest.raises(ParameterError, match="'5' is allowed in quotes"):
        check_names({"runs": {5: {}}})
    check_names({"runs": {"5": {}}})


def test_a_stage_that_dvc_runs_learns_its_entry_from_dvc(project, quick, monkeypatch):
    Path("params.yaml").write_text(yaml.safe_dump(quick))
    monkeypatch.setenv("DVC_STAGE", "../clone@2/dvc.yaml:prepare@s3")
    monkeypatch.setattr(sys, "argv", ["prepare"])
    run_stage(importlib.import_module("stages.prepare").main, *STAGES["prepare"])
    assert Path("data/s3/metadata.json").exists()


def test_what_is_no_split_of_its_own_stays(project, quick):
    Path("params.yaml").write_text(yaml.safe_dump(quick))
    parameters = read_section("datasets.s3", WordProblemParameters)
    folder = project.parent / OUTSIDE
    (folder / "train").rename(folder / "mine")
    (folder / "test_L96").mkdir()
    write_splits(parameters, folder)
    assert (folder / "mine" / "kept").read_text() == "kept"
    assert not (folder / "test_L96").exists()


def test_a_link_out_of_the_data_is_not_followed(project, quick, monkeypatch, capsys):
    Path("params.yaml").write_text(yaml.safe_dump(quick))
    Path("data").mkdir()
    Path("data/s3").symlink_to(project.parent / OUTSIDE)
    monkeypatch.setattr(sys, "argv", ["prepare", "s3"])
    with pytest.raises(SystemExit):
        run_stage(importlib.import_module("stages.prepare").main, *STAGES["prepare"])
    assert "data/s3 leads to" in capsys.readouterr().err
    assert unharmed(project)


@pytest.mark.parametrize(
    "link", ["data/s3", "models/s3_lstm", "models/s3_lstm/final", "results/runs/s3_gpt2"]
)
def test_links_are_refused_before_dvc_follows_them(link, project, quick, monkeypatch, capsys):
    Path("params.yaml").write_text(yaml.safe_dump(quick))
    Path(link).parent.mkdir(parents=True)
    Path(link).symlink_to(project.parent / OUTSIDE)
    monkeypatch.setattr(sys, "argv", ["code"])
    with pytest.raises(SystemExit):
        run_stage(importlib.import_module("stages.code").main)
    assert f"{link} leads to" in capsys.readouterr().err
    assert unharmed(project) and not Path("code").exists()


@pytest.mark.parametrize("link", ["models/s3_lstm/final", "checkpoints/s3_lstm/train_baseline/1"])
def test_a_stage_follows_no_link_within_its_folders(link, project, quick, monkeypatch, capsys):
    Path("params.yaml").write_text(yaml.safe_dump(quick))
    Path(link).parent.mkdir(parents=True)
    Path(link).symlink_to(project.parent / OUTSIDE)
    monkeypatch.setattr(sys, "argv", ["train_baseline", "s3_lstm"])
    with pytest.raises(SystemExit):
        run_stage(importlib.import_module("stages.training.train_baseline").main, "baselines")
    assert f"{link} leads to" in capsys.readouterr().err
    assert unharmed(project)


def with_preset(project: Path, parameters: str) -> None:
    """Write a configuration with one preset into the repository."""
    folder = project / "conf" / "preset"
    folder.mkdir(parents=True)
    (project / "conf" / "config.yaml").write_text("defaults: [{preset: mine}, _self_]\n")
    (folder / "mine.yaml").write_text(f"# @package _global_\n{parameters}")


@pytest.mark.parametrize("name", ["../docs", "$(touch pwned)", "a;touch pwned", "/tmp"])
def test_nothing_is_composed(name, project, quick):
    with_preset(project, renamed(quick, name))
    Path("params.yaml").write_text("runs: {}\n")
    with pytest.raises(ParameterError, match="datasets has an entry named"):
        write_parameters(project, preset="mine")
    with pytest.raises(SweepError, match="datasets has an entry named"):
        compose_point(project, ["preset=mine"])
    (project / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "compose.py", project / "scripts")
    command = [sys.executable, "scripts/compose.py", "mine"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and ALLOWED in done.stderr
    assert Path("params.yaml").read_text() == "runs: {}\n"
    assert unharmed(project)


@pytest.mark.parametrize("value", ["${oc.env:SECRET}", '"\\x24{oc.env:SECRET}"'])
def test_a_preset_gets_nothing_of_the_environment(value, project, quick, monkeypatch, capsys):
    monkeypatch.setenv("SECRET", "hunter2")
    with_preset(project, yaml.safe_dump(quick) + f"seed: {value}\n")
    with pytest.raises(ParameterError, match=r"conf/preset/mine\.yaml, line \d+: .*oc\.env"):
        compose(project, ["preset=mine"])

    Path("params.yaml").write_text(yaml.safe_dump(quick))  # as DVC itself has composed it
    monkeypatch.setattr(sys, "argv", ["code"])
    with pytest.raises(SystemExit):
        run_stage(importlib.import_module("stages.code").main)
    said = capsys.readouterr().err
    assert "conf/preset/mine.yaml" in said and "hunter2" not in said
    assert not Path("code").exists()


def test_a_flow_refuses_before_dvc_looks(project, quick, capsys):
    (project / ".dvc").mkdir()
    (project / ".dvc" / "config").write_text("[core]\n    no_scm = true\n")
    (project / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    for name in bad_names(project.parent):
        Path("params.yaml").write_text(renamed(quick, name))
        with pytest.raises(ParameterError, match="datasets has an entry named"):
            read_dag(project)
    assert reproduce([]) == 2
    assert ALLOWED in capsys.readouterr().err
    assert unharmed(project)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Repository:
    root = tmp_path_factory.mktemp("names")
    (root / OUTSIDE / "train").mkdir(parents=True)
    (root / OUTSIDE / "train" / "kept").write_text("kept")
    return clone(root / "repository", "quick")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "../docs",
        f"../../{OUTSIDE}",
        f"/{OUTSIDE}",
        '"$(touch pwned)"',
        "a;touch pwned",
        "..",
        "a.b",
    ],
)
def test_dvc_runs_nothing_and_empties_nothing(name, repository, quick):
    path = repository.path / "params.yaml"
    before = path.read_text()
    path.write_text(renamed(quick, name))
    process = repository.start("dvc", "repro")
    output = process.communicate()[0]
    path.write_text(before)
    assert process.returncode != 0
    ran = [line for line in output.splitlines() if line.startswith("Running stage")]
    assert ran in ([], ["Running stage 'code':"])
    assert ALLOWED in output or (name == ".." and "overlap" in output), output
    assert unharmed(repository.path)
    assert repository.run("git", "status", "--porcelain") == ""


@pytest.mark.slow
def test_an_experiment_refuses_the_name_of_a_preset(repository, quick):
    preset = repository.path / "conf" / "preset" / "mine.yaml"
    preset.write_text("# @package _global_\n" + renamed(quick, f"../../{OUTSIDE}"))
    commit(repository, "A preset")
    process = repository.start("dvc", "exp", "run", "--set-param", "preset=mine")
    output = process.communicate()[0]
    assert process.returncode != 0 and ALLOWED in output, output
    assert unharmed(repository.path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given, said",
    [
        (("preset=quik",), "there is no preset quik; the closest is quick (valid: "),
        (("preset=quick", f"{IMPLICIT}.sede=1"), f"the closest valid key is {IMPLICIT}.seed "),
        (
            ("preset=quick", f"{IMPLICIT}.seed=${{nowhere}}"),
            "Interpolation key 'nowhere' not found",
        ),
        (("preset=quick", f"{IMPLICIT}.bounded.num_training_steps=abc"), "steps = 'abc' is not"),
        (("preset=quick", "sweep.word_problem.length=25"), "sweep.word_problem asks for test"),
        (("--queue", "preset=quick,quik"), "there is no preset quik"),
    ],
)
def test_an_experiment_says_in_one_line_what_is_wrong(given, said, repository):
    before = (repository.path / "params.yaml").read_text()
    command = ["dvc", "exp", "run"]
    for each in given:
        command += [each] if each.startswith("--") else ["--set-param", each]
    process = repository.start(*command)
    output = process.communicate()[0]
    assert process.returncode != 0
    (line,) = output.splitlines()
    assert line.startswith("ERROR: ") and said in line, output
    assert line.endswith("; nothing was changed")
    assert (repository.path / "params.yaml").read_text() == before
    assert repository.run("git", "status", "--porcelain") == ""


@pytest.mark.slow
def test_an_experiment_does_not_warn_of_all_that_no_run_has_written_yet(repository):
    settings = ("--set-param", "preset=quick", "--set-param", "report.success_threshold=0.5")
    output = repository.run("dvc", "exp", "run", *settings, "code")
    assert "Running stage 'code'" in output
    assert "It won't be created" not in output
