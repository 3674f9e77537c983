"""Counting the seeds that hold, from results that are made up."""

import pytest

from benchmarks import clones, state_tracking
from benchmarks.harness import Bar
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
