"""Counting the seeds that hold, from results that are made up."""

import json
import subprocess

import pytest
import yaml

from benchmarks import clones, harness, state_tracking
from benchmarks.harness import Bar, Report
from implicit_models.parameters.composition import compose
from stages.check import check_text
from tests.repositories import ROOT


@pytest.fixture
def rows():
    """Rows of two seeds: one holds at 40 tokens and follows all of them, the other 25."""
    runs = {}
    for name, followed in (("a5_implicit_mamba2", 40), ("a5_implicit_mamba2_seed_1", 25)):
        accuracy = {"20": 1.0, "40": 1.0 if followed == 40 else 0.5, "1280": 0.1}
        costs = {"train_seconds": followed, "training_flops": 2e12}
        runs[name] = {"accuracy_last_10": accuracy} | costs
    rates = {
        length: {"num_solved": solved, "rate": solved / 2, "interval": [0.1, 0.9]}
        for length, solved in (("20", 2), ("40", 1), ("1280", 0))
    }
    group = {"num_runs": 2, "runs": list(runs), "by_length": rates}
    tracked = dict(zip(runs, (40, 25), strict=True))
    return state_tracking._rows("a5_implicit_mamba2", group, runs, tracked)


def test_a_row_for_each_length(rows):
    assert [(row["tokens"], row["hold"], row["seeds"]) for row in rows] == [
        (20, 2, 2), (40, 1, 2), (1280, 0, 2),
    ]  # fmt: skip
    assert (rows[1]["lowest"], rows[1]["mean_accuracy"], rows[1]["highest"]) == (0.5, 0.75, 1.0)
    assert {row["tracked_at_least"] for row in rows} == {25}
    assert {row["training_seconds"] for row in rows} == {32.5}


def test_bars_are_of_the_lengths_that_were_tested(rows):
    assert state_tracking._bars(rows) == {
        "a5_implicit_mamba2: seeds with 99 % at 20 tokens": Bar(2, 10, False),
        "a5_implicit_mamba2: seeds with 99 % at 1280 tokens": Bar(0, 9, False),
    }


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Parts write under `tmp_path`, and only tell what they would have run."""
    asked = []

    def reproduced(part, path, settings):
        asked.append((part, path, settings))
        return Report([{"model": part, "tokens": 20}], {"seeds": Bar(1, 2, False)})

    monkeypatch.setattr(state_tracking, "_measured", reproduced)
    monkeypatch.setitem(harness.main.__kwdefaults__, "results", tmp_path)
    return asked


def test_each_part_has_results_of_its_own(measured, tmp_path):
    assert state_tracking.main(["layers"]) == 1
    assert state_tracking.main(["--quick", "layers", "ten_seeds"]) == 0
    names = [
        f"state_tracking.{each}.json" for each in ("layers", "layers.quick", "ten_seeds.quick")
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    written = json.loads((tmp_path / "state_tracking.layers.json").read_text())
    assert written["command"] == "python -m benchmarks.state_tracking layers"
    assert measured[0] == ("layers", state_tracking.CLONES / "layers", [])


def test_without_a_name_all_parts_are_run(measured):
    assert state_tracking.main([]) == 1
    assert tuple(part for part, *_ in measured) == state_tracking.PARTS


def test_an_unknown_part_is_told(measured, capsys):
    with pytest.raises(SystemExit):
        state_tracking.main(["five_seeds"])
    assert (
        "no part five_seeds (of ten_seeds, layers, state_tracking_llama)" in capsys.readouterr().err
    )
    assert not measured


@pytest.mark.parametrize("part", state_tracking.PARTS)
def test_short_trainings_are_a_valid_preset_of_one_seed(part):
    composed = compose(ROOT, [f"preset={part}", *state_tracking._short(part)])
    assert not check_text(composed, part)
    tables = yaml.safe_load(composed)
    assert len(tables["runs"]) == 1
    assert all(run["free"]["num_training_steps"] == 10 for run in tables["runs"].values())
    trainings = [each["training"] for each in tables["baselines"].values()]
    assert trainings and all(each["num_training_steps"] == 20 for each in trainings)


def test_a_copy_has_the_code_and_keeps_what_it_has_computed(tmp_path):
    clones.clone(tmp_path, "quick")
    (tmp_path / "stages" / "old.py").write_text("")
    (tmp_path / "results").mkdir(exist_ok=True)
    (tmp_path / "results" / "summary.json").write_text("{}")
    (tmp_path / "dvc.lock").write_text("mine")
    (tmp_path / ".dvc" / "cache").mkdir()
    clones.clone(tmp_path, "quick")
    assert not (tmp_path / "stages" / "old.py").exists()
    assert (tmp_path / "dvc.yaml").read_text() == (ROOT / "dvc.yaml").read_text()
    assert (tmp_path / "dvc.lock").read_text() == "mine"
    assert (tmp_path / "results" / "summary.json").read_text() == "{}"
    assert (tmp_path / ".dvc" / "cache").is_dir() and (tmp_path / ".dvc" / "config").exists()
    assert "s3_implicit_mamba2" in (tmp_path / "params.yaml").read_text()


def test_a_copy_has_the_cache_that_dvc_has_been_told_and_the_users_own_files(monkeypatch, tmp_path):
    root = tmp_path / "root"
    subprocess.check_call(["git", "init", "--quiet", root])
    (root / ".dvc").mkdir()
    (root / ".dvc" / "config").write_text(f"[cache]\n    dir = {tmp_path / 'elsewhere'}\n")
    (root / "text" / "train").mkdir(parents=True)
    commands = []

    def run(folder, *arguments, **_):
        commands.append(arguments)

    def copy(folder, preset, *settings):
        (folder / ".git").mkdir(parents=True)
        (folder / "params.yaml").write_text(compose(ROOT, [f"preset={preset}", *settings]))

    monkeypatch.setattr(clones, "ROOT", root)
    monkeypatch.setattr(clones, "clone", copy)
    monkeypatch.setattr(clones, "python", run)
    folders = {cached: tmp_path / f"copy_{cached}" for cached in (True, False)}
    for cached, folder in folders.items():
        clones.reproduce(folder, "text_small", jobs=2, cached=cached)
        assert (folder / "text" / "train").is_dir()
    (setting,) = (each for each in commands if "cache.dir" in each)
    assert setting[-1] == str(tmp_path / "elsewhere")
    assert [each for each in commands if "--jobs" in each] == [
        ("-m", "pipelines.reproduce", "--jobs", "2")
    ] * 2


def test_one_that_is_stopped_is_one_line_and_leaves_no_results(monkeypatch, tmp_path, capsys):
    def stopped(part, path, settings):
        clones.python(tmp_path, "-c", "raise SystemExit(143)")

    monkeypatch.setattr(state_tracking, "_measured", stopped)
    monkeypatch.setitem(harness.main.__kwdefaults__, "results", tmp_path)
    assert state_tracking.main(["layers"]) == 1
    said = capsys.readouterr().err
    assert "ended with 143" in said and "the same command goes on from there" in said
    assert "Traceback" not in said and not list(tmp_path.iterdir())
