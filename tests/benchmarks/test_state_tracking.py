"""Counting the seeds that hold, from results that are made up."""

import contextlib
import json
import os
import subprocess

import pytest
import yaml

from benchmarks import clones, state_tracking
from benchmarks.harness import Bar
from implicit_models.parameters.composition import compose
from pipelines.terminal import UNRECORDED
from scripts import measured
from stages.check import check_text
from tests.repositories import ROOT


def of_seed(seed, at_forty):
    scores = {"1280": 0.1, "20": 1.0, "40": at_forty}
    costs = {"train_seconds": 25 + 15 * seed, "training_flops": 2e12}
    named = {"name": f"seed_{seed}", "group": "a5_implicit_mamba2", "seed": seed}
    return named | {"scores": scores} | costs


RUNS = [of_seed(0, 1.0), of_seed(1, 0.5)]


def test_a_row_for_each_length():
    rows = state_tracking.report(RUNS).rows
    assert [(row["tokens"], row["hold"], row["seeds"]) for row in rows] == [
        (20, 2, 2), (40, 1, 2), (1280, 0, 2),
    ]  # fmt: skip
    assert (rows[1]["lowest"], rows[1]["mean_accuracy"], rows[1]["highest"]) == (0.5, 0.75, 1.0)
    assert (rows[1]["interval_low"], rows[1]["interval_high"]) == pytest.approx(
        (0.0945, 0.9055), abs=1e-4
    )
    assert {row["training_seconds"] for row in rows} == {32.5}


def test_seeds_without_a_score_at_a_length_are_told_and_not_counted():
    lacking, diverged = of_seed(2, 1.0), of_seed(3, None) | {"training_flops": None}
    del lacking["scores"]["1280"]
    rows = state_tracking.report([lacking, diverged, *RUNS]).rows
    assert [
        (row["tokens"], row["hold"], row["seeds"], row.get("without_score")) for row in rows
    ] == [(20, 4, 4, None), (40, 2, 3, 1), (1280, 0, 3, 1)]
    assert {row["training_flops"] for row in rows} == {2e12}
    alone = state_tracking.report([diverged]).rows
    assert [row["training_flops"] for row in alone] == [None] * 3
    assert [(row["tokens"], row["seeds"]) for row in alone] == [(20, 1), (40, 0), (1280, 1)]


def test_bars_are_of_the_lengths_that_were_tested():
    assert state_tracking.report(RUNS).bars == {
        "a5_implicit_mamba2: seeds with 99 % at 20 tokens": Bar(2, 10, False),
        "a5_implicit_mamba2: seeds with 99 % at 1280 tokens": Bar(0, 9, False),
    }


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """What would have been run, and what is left of it: seeds of which too few hold."""
    asked = []

    @contextlib.contextmanager
    def reproduced(folder, part, *settings, jobs, cached, seeds=()):
        asked.append((part, cached, bool(settings), *seeds))
        yield

    def of_folder(part, folder, settings=()):
        return RUNS

    monkeypatch.setattr(state_tracking, "reproduced", reproduced)
    monkeypatch.setattr(state_tracking, "of_folder", of_folder)
    monkeypatch.setattr(measured, "of_folder", of_folder)
    monkeypatch.setattr(measured, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(state_tracking, "write_tables", lambda _: asked.append("tables") or 0)
    return asked


def test_what_a_part_leaves_is_kept_and_judged(asked, tmp_path, capsys):
    assert state_tracking.main(["layers"]) == 1
    assert asked == [("layers", True, False, 0, 1, 2, 3, 4), "tables"]
    assert json.loads((tmp_path / "measured" / "layers.json").read_text()) == RUNS
    said = capsys.readouterr().out
    assert "at 20 tokens: 2 (required 10) DOES NOT HOLD" in said
    assert state_tracking.main(["--kept", "layers"]) == 1
    assert capsys.readouterr().out == said and len(asked) == 2


def test_further_seeds_that_were_measured_stay(asked, monkeypatch, tmp_path, capsys):
    further = RUNS[1] | {"name": "measured_before", "seed": 9}
    path = tmp_path / "measured" / "layers.json"
    path.parent.mkdir()
    path.write_text(json.dumps([further]))
    monkeypatch.setattr(measured, "groups_of", lambda *_: {"x": "a5_implicit_mamba2"})
    assert state_tracking.main(["layers"]) == 1
    assert json.loads(path.read_text()) == [further, *RUNS]
    told = "layers: kept, from before the preset changed: measured_before\n"
    assert told in capsys.readouterr().err


def test_a_bar_where_no_seed_has_a_score_is_missed():
    none = [{**run, "scores": dict.fromkeys(run["scores"])} for run in RUNS]
    found = state_tracking.report(none)
    assert found.bars.keys() == state_tracking.report(RUNS).bars.keys()
    assert not any(bar.holds for bar in found.bars.values())
    assert {row["seeds"] for row in found.rows} == {0}


def test_pages_that_cannot_be_written_end_it(asked, monkeypatch):
    monkeypatch.setattr(state_tracking, "write_tables", lambda _: 2)
    assert state_tracking.main(["layers"]) == 2


def test_the_short_form_keeps_nothing_and_judges_nothing(asked, tmp_path):
    assert state_tracking.main(["--quick", "layers", "ten_seeds"]) == 0
    assert asked == [("layers", False, True), ("ten_seeds", False, True)]
    assert not list(tmp_path.iterdir())


def test_without_a_name_all_parts_are_run(asked):
    assert state_tracking.main([]) == 1
    assert tuple(part for part, *_ in asked[::2]) == state_tracking.PARTS


def test_what_was_never_measured_is_told(asked, capsys):
    assert state_tracking.main(["--kept", "layers"]) == 2
    said = capsys.readouterr().err
    assert "layers.json does not exist" in said and said.count("\n") == 1


def test_an_unknown_part_is_told(asked, capsys):
    with pytest.raises(SystemExit):
        state_tracking.main(["five_seeds"])
    assert (
        "no part five_seeds (of ten_seeds, layers, state_tracking_llama)" in capsys.readouterr().err
    )
    assert not asked


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
        seeds = range(2 * (not cached))
        with clones.reproduced(folder, "text_small", jobs=2, cached=cached, seeds=seeds):
            assert (folder / "text" / "train").is_dir()
    (setting,) = (each for each in commands if "cache.dir" in each)
    assert setting[-1] == str(tmp_path / "elsewhere")
    assert [each for each in commands if "--jobs" in each] == [
        ("-m", "pipelines.reproduce", "--jobs", "2"),
        ("-m", "pipelines.reproduce", "--jobs", "2", "--seeds", "0,1"),
    ]


def test_one_call_at_a_time_works_in_a_copy(monkeypatch, tmp_path):
    path, done = tmp_path / "copy", []

    def run(folder, *arguments, keep_open=(), **_):
        if "--jobs" not in arguments:
            return
        (lock,) = keep_open
        assert os.path.samestat(os.fstat(lock), os.stat(path / ".dvc" / "tmp" / "copy.lock"))
        refused()
        done.append(arguments)

    def refused():
        told = f"another call works in {path}; let it end"
        with (
            pytest.raises(clones.CommandError, match=told),
            clones.reproduced(path, "quick", jobs=1, cached=True),
        ):
            pass

    def copy(folder, preset):
        (folder / ".git").mkdir(exist_ok=True)
        (folder / "params.yaml").write_text(compose(ROOT, [f"preset={preset}"]))

    monkeypatch.setattr(clones, "clone", copy)
    monkeypatch.setattr(clones, "python", run)
    for _ in range(2):  # the second goes on where the first has ended
        with clones.reproduced(path, "quick", jobs=1, cached=True):
            refused()
    assert len(done) == 2


def test_a_copy_has_files_of_any_name(monkeypatch, tmp_path):
    root, name = tmp_path / "root", os.fsdecode(b"notes_\xff.txt")
    root.mkdir()
    monkeypatch.setattr(clones, "ROOT", root)
    monkeypatch.setattr(clones, "python", lambda *_: None)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(clones.CommandError, match=f"what a copy of {root} has: .*not a git repo"):
        clones.clone(tmp_path / "copy", "quick")
    subprocess.check_call(["git", "init", "--quiet", root])
    (root / name).write_text("mine")
    clones.clone(tmp_path / "copy", "quick")
    assert (tmp_path / "copy" / name).read_text() == "mine"


def test_a_copy_whose_flow_prefect_could_not_record_has_its_results(tmp_path):
    ended = ("-c", f"raise SystemExit({UNRECORDED})")
    clones.python(tmp_path, *ended, ends=(0, UNRECORDED))
    with pytest.raises(clones.CommandError, match="ended with 3"):
        clones.python(tmp_path, *ended)


def test_one_that_is_stopped_is_one_line_and_leaves_no_results(
    asked, monkeypatch, tmp_path, capsys
):
    def stopped(*_, **__):
        clones.python(tmp_path, "-c", "raise SystemExit(143)")

    monkeypatch.setattr(state_tracking, "reproduced", stopped)
    assert state_tracking.main(["layers"]) == 1
    said = capsys.readouterr().err
    assert "ended with 143" in said and "the same command goes on from there" in said
    assert "Traceback" not in said and not list(tmp_path.iterdir())
