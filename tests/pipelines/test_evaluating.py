"""`implicit-models evaluate ENTRY`: what it runs, and that it trains nothing."""

import json
import os

import pytest

from pipelines import evaluating, experiment
from pipelines.dag import UnknownTargetError
from pipelines.evaluating import (
    NotTrainedError,
    StaleResultsError,
    evaluate_entry,
    report_entries,
)
from tests.pipelines.tiny import project, stage

STAGES = {
    "code": stage("mkdir -p code; echo first > code/ours", ("source",), ("code/ours",)),
    "train_free": {
        "foreach": ["ours"],
        "do": stage(
            "mkdir -p models/ours/final; echo trained >> log; cat seed > models/ours/final/weights",
            ("code/ours", "seed"),
            ("models/ours/final",),
        ),
    },
    "evaluate_benchmarks": {
        "foreach": ["ours"],
        "do": stage(
            "echo evaluated >> log; cat models/ours/final/weights questions > score",
            ("models/ours/final", "questions"),
            ("score",),
        ),
    },
}
MODEL = "models/ours/final/weights"


def run_in(made, monkeypatch):
    """Run what is given to the terminal in a project, with its environment."""

    def run_dvc(command, **_):
        made.run(*command[1:])
        return 0

    monkeypatch.setattr(experiment, "run_in_terminal", run_dvc)


@pytest.fixture
def made(tmp_path, monkeypatch):
    made = project(tmp_path / "project", STAGES)
    for name in ("source", "seed", "questions"):
        (made.path / name).write_text(name)
    monkeypatch.chdir(made.path)

    run_in(made, monkeypatch)
    return made


def test_what_is_trained_is_evaluated_and_not_trained_again(made):
    made.run("-m", "dvc", "repro")
    (made.path / "questions").write_text("others")
    assert evaluate_entry(made.path, "ours") == 0
    assert made.lines("log") == ["trained", "evaluated", "evaluated"]
    (made.path / "source").write_text("other comments, the same code")
    assert evaluate_entry(made.path, "ours") == 0
    assert made.lines("log") == ["trained", "evaluated", "evaluated"]


def others_use(made, *, write=(), read=()):
    """Make another process write and read files, as DVC notes it."""
    other = {"pid": os.getpid(), "cmd": "dvc repro"}
    claims = {
        "write": {str(made.path / path): other for path in write},
        "read": {str(made.path / path): [other] for path in read},
    }
    (made.path / ".dvc" / "tmp" / "rwlock").write_text(json.dumps(claims))


def test_another_training_is_not_in_the_way(made):
    made.run("-m", "dvc", "repro")
    (made.path / "questions").write_text("others")
    others_use(made, read=["code/ours"])  # as every training does
    assert evaluate_entry(made.path, "ours") == 0
    assert made.lines("log") == ["trained", "evaluated", "evaluated"]


def test_code_that_is_being_written_is_told(made):
    made.run("-m", "dvc", "repro")
    others_use(made, write=["code/ours"])
    with pytest.raises(NotTrainedError, match="code is in use: call again when it has ended"):
        evaluate_entry(made.path, "ours")


def test_what_would_be_trained_is_refused_and_its_model_stays(made):
    with pytest.raises(NotTrainedError, match=r"ours is not up to date.*`dvc repro evaluate_b"):
        evaluate_entry(made.path, "ours")
    assert made.lines("log") == [] and not (made.path / "code").exists()
    (made.path / MODEL).parent.mkdir(parents=True)
    (made.path / MODEL).write_text("of somebody else")
    with pytest.raises(NotTrainedError, match=r"replaces models/ours/final: `python -m stages"):
        evaluate_entry(made.path, "ours")
    assert (made.path / MODEL).read_text() == "of somebody else"
    made.run("-m", "dvc", "repro", "--force")
    (made.path / "seed").write_text("another")
    with pytest.raises(NotTrainedError, match="train_free@ours has not run"):
        evaluate_entry(made.path, "ours")
    assert (made.path / MODEL).read_text() == "seed"


def test_a_training_at_work_is_told(made):
    made.run("-m", "dvc", "repro")
    others_use(made, write=["models/ours/final"])
    with pytest.raises(NotTrainedError, match="train_free@ours is in use"):
        evaluate_entry(made.path, "ours")


REPORTED = {
    "code": stage("mkdir -p code; cat source > code/ours", ("source",), ("code/ours",)),
    "evaluate_benchmarks": {
        "foreach": ["ours", "theirs"],
        "do": stage(
            "mkdir -p results/runs/${item}; cat code/ours > results/runs/${item}/metrics.json",
            ("code/ours",),
            ("results/runs/${item}/metrics.json",),
        ),
    },
    "report": stage("cat results/runs/*/metrics.json > page", ("results/runs",), ("page",)),
}


def test_a_report_is_of_what_is_up_to_date(tmp_path, monkeypatch):
    made = project(tmp_path / "project", REPORTED, {})
    (made.path / "source").write_text("first")

    run_in(made, monkeypatch)
    made.run("-m", "dvc", "repro", "evaluate_benchmarks@ours")
    assert report_entries(made.path) == 0  # the other one is named in it, and lacks results
    assert (made.path / "page").read_text() == "first"
    made.run("-m", "dvc", "repro")
    (made.path / "source").write_text("second")
    said = "evaluate_benchmarks@ours, evaluate_benchmarks@theirs would run again.*`python -m stages"
    with pytest.raises(StaleResultsError, match=said):
        report_entries(made.path)
    assert (made.path / "page").read_text() == "firstfirst"
    (made.path / "code" / "ours").unlink()  # of a model that has made room, what is told stays old
    with pytest.raises(StaleResultsError, match=said):
        report_entries(made.path)
    made.run("-m", "dvc", "repro", "evaluate_benchmarks")
    assert report_entries(made.path) == 0
    assert (made.path / "page").read_text() == "secondsecond"


def test_a_report_needs_no_files_but_results(tmp_path, monkeypatch):
    stages = dict(REPORTED)
    stages["train"] = stage("cat code/ours > model", ("code/ours",), ("model",))
    stages["evaluate_benchmarks"] = {
        "foreach": ["ours"],
        "do": stage(
            "mkdir -p results/runs/${item}; cat model | tee results/runs/${item}/metrics.json >big",
            ("model",),
            ("results/runs/${item}/metrics.json", "big"),
        ),
    }
    made = project(tmp_path / "project", stages, {})
    (made.path / "source").write_text("first")

    run_in(made, monkeypatch)
    made.run("-m", "dvc", "repro")
    for name in ("model", "big", "page"):
        (made.path / name).unlink()
    assert report_entries(made.path) == 0
    assert (made.path / "page").read_text() == "first" and not (made.path / "model").exists()
    (made.path / "source").write_text("second")
    again = "evaluate_benchmarks@ours would run again"
    with pytest.raises(StaleResultsError, match=again):
        report_entries(made.path)
    made.run("-m", "dvc", "repro", "train")  # and the new model makes room
    (made.path / "model").unlink()
    with pytest.raises(StaleResultsError, match=again):
        report_entries(made.path)
    assert (made.path / "page").read_text() == "first"


def test_a_report_of_what_is_being_made_is_refused(tmp_path, monkeypatch):
    made = project(tmp_path / "project", REPORTED, {})
    (made.path / "source").write_text("first")

    run_in(made, monkeypatch)
    made.run("-m", "dvc", "repro")
    (made.path / "source").write_text("second")
    made.run("-m", "dvc", "repro", "--single-item", "code")
    others_use(made, write=["results/runs/ours/metrics.json"], read=["code/ours"])
    with pytest.raises(StaleResultsError, match="evaluate_benchmarks@ours is in use: call"):
        report_entries(made.path)
    assert (made.path / "page").read_text() == "firstfirst"


def test_an_entry_that_nothing_evaluates_is_named(made):
    with pytest.raises(UnknownTargetError, match="theirs is no entry.* allowed are ours"):
        evaluate_entry(made.path, "theirs")
    with pytest.raises(UnknownTargetError, match="the closest is ours"):
        evaluate_entry(made.path, "our")


def test_a_preparation_that_fails_ends_it(made, monkeypatch):
    made.run("-m", "dvc", "repro")
    monkeypatch.setattr(evaluating, "reproduce", lambda root, names: 255)
    assert evaluate_entry(made.path, "ours") == 255
