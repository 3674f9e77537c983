"""Trainings that were begun with another batch, other code or another torch."""

import functools
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from implicit_models.code_digest import code_digests
from implicit_models.parameters import ParameterError
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.spool import all_spools
from implicit_models.training.trainer import train as training
from stages.training import identity, train_baseline, train_bounded, train_free
from stages.training.identity import Identity
from tests import warm_python
from tests.stages.small_training import (
    BASELINE,
    ROOT,
    RUN,
    Recorder,
    cut_short,
    lengthen_baseline,
    replace_in_parameters,
    write_project,
)

FOLDER = Path("checkpoints", BASELINE, "train_baseline")
BATCH, CODE = "IMPLICIT_MODELS_CHANGED_BATCH", "IMPLICIT_MODELS_CHANGED_CODE"
CHANGED = "after 2 steps other code: training/trainer.py"


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    monkeypatch.delenv(BATCH, raising=False)
    monkeypatch.delenv(CODE, raising=False)
    write_project(tmp_path)
    lengthen_baseline()


@pytest.fixture
def run(monkeypatch):
    """Run a training stage; returns the metrics of the steps it makes, and the tags of its run.

    Its run has those from before it as well, which are looked at here.
    """

    def run(module=train_baseline, name=BASELINE):
        recorder, tags, told_before = Recorder(), {}, []

        def open_run(*_, **settings):
            tags.update(settings["tags"])
            return recorder

        def train(*arguments):
            told_before.extend(recorder.calls)
            return training(*arguments)

        monkeypatch.setattr("stages.training.segment.open_run", open_run)
        monkeypatch.setattr("stages.training.segment.train", train)
        module.main(name)
        earlier = [step for level, step, _ in told_before if level == "both"]
        rows = {}
        for level, step, row in recorder.calls[len(told_before) :]:
            if level == "both":
                rows[step] = dict(row)
            elif step in rows and level == "stage":
                rows[step] |= row
        assert earlier == ([] if module is train_free else list(range(1, min(rows))))
        return rows, tags

    return run


@pytest.fixture
def change_code(monkeypatch):
    """Make the code another one, as far as digests tell."""

    def change_code(to: str = "another") -> None:
        monkeypatch.setattr(
            identity,
            "code_digests",
            lambda without: code_digests(without=without) | {"training/trainer.py": to},
        )

    return change_code


def change_batch():
    replace_in_parameters("batch_size: 64", "batch_size: 32")


def card(folder: str, name: str = BASELINE) -> str:
    return Path("models", name, folder, "README.md").read_text()


def test_another_global_batch_is_refused_until_it_is_asked_for(run, monkeypatch, caplog):
    cut_short(monkeypatch, train_baseline)
    change_batch()
    (begun,) = FOLDER.iterdir()
    match = "is this training with a global batch of 64 sequences, and now it has 32.*=continue"
    with pytest.raises(ParameterError, match=match):
        run()
    assert list(begun.glob("step_*"))  # nothing is lost

    monkeypatch.setenv(BATCH, "continue")
    rows, tags = run()
    assert f"continuing from {begun}" in caplog.text
    assert list(rows) == [3, 4]
    assert [rows[step]["train.sequences"] for step in rows] == [2 * 64 + 32, 2 * 64 + 2 * 32]
    change = "after 2 steps a global batch of 32 sequences in place of 64"
    assert tags == {"training.changes": change}
    assert f"| changed under way | {change} |" in card("final")


def test_another_global_batch_in_the_free_phase_is_refused_until_it_is_asked_for(run, monkeypatch):
    run(train_bounded, RUN)
    change_batch()
    match = "train.*a global batch of 64 sequences, and now it has 32.*=continue goes on"
    with pytest.raises(ParameterError, match=match):
        run(train_free, RUN)
    monkeypatch.setenv(BATCH, "continue")
    rows, _ = run(train_free, RUN)
    assert [row["train.sequences"] for row in rows.values()] == [3 * 64 + 32, 3 * 64 + 2 * 32]


def test_the_free_phase_has_the_last_batch_of_a_bounded_one_that_was_changed(run, monkeypatch):
    cut_short(monkeypatch, train_bounded, RUN)
    change_batch()
    with monkeypatch.context() as patch:
        patch.setenv(BATCH, "continue")
        run(train_bounded, RUN)
    rows, _ = run(train_free, RUN)
    assert [row["train.sequences"] for row in rows.values()] == [2 * 64 + 2 * 32, 2 * 64 + 3 * 32]


def test_another_global_batch_may_begin_anew(run, monkeypatch):
    cut_short(monkeypatch, train_baseline)
    change_batch()
    monkeypatch.setenv(BATCH, "restart")
    rows, tags = run()
    assert list(rows) == [1, 2, 3, 4] and not tags


def test_other_code_is_named_and_refused_until_it_is_asked_for(
    run, monkeypatch, change_code, caplog
):
    cut_short(monkeypatch, train_baseline)
    (begun,) = FOLDER.iterdir()
    before = {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()}
    change_code()
    match = (
        f"{begun}/step_000000002 is this training with other code, after 2 steps; what differs: "
        f"training/trainer.py. .*{CODE}=continue goes on from there.*card.*{CODE}=restart, or "
        f"removing {begun}, begins anew"
    )
    with pytest.raises(ParameterError, match=match):
        run()
    monkeypatch.setenv(CODE, "yes")
    with pytest.raises(ParameterError, match=f"{CODE} is 'yes'; allowed are continue and restart"):
        run()
    assert {path: path.read_bytes() for path in before} == before

    monkeypatch.setenv(CODE, "continue")
    rows, tags = run()
    assert f"continuing from {begun}" in caplog.text
    assert list(rows) == [3, 4]
    assert tags == {"training.changes": CHANGED}
    assert f"| changed under way | {CHANGED} |" in card("final")
    assert {path: path.read_bytes() for path in before} == before


def test_other_code_may_begin_anew(run, monkeypatch, change_code):
    cut_short(monkeypatch, train_baseline)
    (begun,) = FOLDER.iterdir()
    change_code()
    monkeypatch.setenv(CODE, "restart")
    rows, tags = run()
    assert list(rows) == [1, 2, 3, 4] and not tags
    assert "changed under way" not in card("final")
    assert list(begun.glob("step_*"))

    shutil.rmtree("checkpoints")
    monkeypatch.delenv(CODE)
    assert list(run()[0]) == [1, 2, 3, 4]


def test_the_code_from_before_goes_on_unasked(run, monkeypatch, change_code):
    cut_short(monkeypatch, train_baseline)
    change_code()
    with pytest.raises(ParameterError):
        run()
    change_code(code_digests()["training/trainer.py"])
    rows, tags = run()
    assert list(rows) == [3, 4] and not tags


def test_what_was_changed_is_told_by_all_that_comes_after(run, monkeypatch, change_code):
    """By the training that is interrupted again, and by the phase after it."""
    replace_in_parameters("num_training_steps: 3", "num_training_steps: 5")
    cut_short(monkeypatch, train_bounded, RUN)
    change_code()
    monkeypatch.setenv(CODE, "continue")
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "log_metrics", stop_after(3))
        with pytest.raises(SystemExit):
            run(train_bounded, RUN)
    monkeypatch.delenv(CODE)
    rows, tags = run(train_bounded, RUN)
    assert list(rows) == [5] and tags == {"training.changes": CHANGED}
    assert CHANGED in card("bounded", RUN)

    _, tags = run(train_free, RUN)
    assert tags == {"training.changes": CHANGED}
    assert CHANGED in card("final", RUN)


def stop_after(last: int):
    plain = Recorder.log_metrics

    def log_metrics(self, metrics, step=None, level="both"):
        plain(self, metrics, step, level)
        if step == last:
            signal.raise_signal(signal.SIGTERM)

    return log_metrics


def test_another_torch_is_as_other_code(run, monkeypatch):
    cut_short(monkeypatch, train_baseline)
    found = torch.__version__
    monkeypatch.setattr(torch, "__version__", "9.9")
    match = rf"other code, after 2 steps; what differs: torch \({found} is now 9.9\)\. "
    with pytest.raises(ParameterError, match=match.replace("+", r"\+")):
        run()
    monkeypatch.setenv(CODE, "continue")
    assert list(run()[0]) == [3, 4]


def test_a_batch_and_code_that_are_both_changed_are_both_asked_for(run, monkeypatch, change_code):
    cut_short(monkeypatch, train_baseline)
    change_code()
    change_batch()
    monkeypatch.setenv(CODE, "continue")
    with pytest.raises(ParameterError, match=f"{BATCH}=continue"):
        run()
    monkeypatch.setenv(BATCH, "continue")
    monkeypatch.delenv(CODE)
    with pytest.raises(ParameterError, match=f"{CODE}=continue"):
        run()
    monkeypatch.setenv(CODE, "continue")
    rows, tags = run()
    assert list(rows) == [3, 4]
    assert tags["training.changes"].count("after 2 steps") == 2


def test_other_parameters_are_another_training(run, monkeypatch, change_code):
    cut_short(monkeypatch, train_baseline)
    change_code()
    replace_in_parameters("clip_norm: 1.0", "clip_norm: 0.5")
    rows, tags = run()
    assert list(rows) == [1, 2, 3, 4] and not tags


def test_files_are_named_up_to_a_number():
    before = Identity("rest", 8, "2.0", {"a.py": "1", "b.py": "1", "c.py": "1"})
    now = Identity("rest", 8, "2.1", {"a.py": "1", "b.py": "2", "d.py": "1"})
    changed = ["b.py", "d.py (new)", "c.py (gone)", "torch (2.0 is now 2.1)"]
    assert now.code_changes(before) == changed
    many = Identity("rest", 8, "2.0", {f"{number:02}.py": "1" for number in range(13)})
    assert many.code_changes(before)[9:] == ["09.py (new)", "6 other files"]


def test_the_tracked_run_has_a_tag(monkeypatch, change_code):
    cut_short(monkeypatch, train_baseline)
    change_code()
    monkeypatch.setenv(CODE, "continue")
    unsent = functools.partial(open_tracker, send=False)
    monkeypatch.setattr("stages.tracked.open_tracker", unsent)
    train_baseline.main(BASELINE)
    start = all_spools(Path("."))[-1].start()
    assert start is not None and start["tags"]["training.changes"] == CHANGED


EDITS = {  # which change nothing that is computed
    "training/trainer.py": ('"""The training loop."""', '"""The loop."""  # of training'),
    "training/step.py": ("zero_grad(set_to_none=True)", "zero_grad(\nset_to_none = True)"),
    "tracking/tracker.py": ("class NullTracker", "ADDED = 1\n\n\nclass NullTracker"),
    "cost/devices.py": ('"""', 'ADDED = 1\n"""'),
}


@pytest.mark.slow
def test_a_training_that_is_killed_goes_on_with_edited_code(tmp_path):
    """In processes of their own, from a copy of the code that is edited in between."""
    for package in ("implicit_models", "stages"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignored)
    replace_in_parameters("num_training_steps: 4", "num_training_steps: 600")
    replace_in_parameters("checkpoint_every: 20", "checkpoint_every: 2")
    command = ["python", "-m", "stages.training.train_baseline", BASELINE]
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "PATH": warm_python.before(os.environ["PATH"]),
    }

    def kill(**variables: str) -> str:
        """Kill the training when it has written a checkpoint that was not there before."""
        known = set(FOLDER.glob("*/step_?????????/progress.json"))
        process = subprocess.Popen(
            command,
            env=environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while process.poll() is None and not (
            set(FOLDER.glob("*/step_?????????/progress.json")) - known
        ):
            time.sleep(0.01)
        process.kill()
        # A fork, killed a moment later, may still write.
        return process.communicate(timeout=60)[0]

    def edit(file: str, before: str, after: str) -> None:
        path = tmp_path / "implicit_models" / file
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after, 1))

    assert "continuing" not in kill()
    for file, (before, after) in EDITS.items():
        edit(file, before, after)
    assert "continuing from checkpoints" in kill()
    (begun,) = FOLDER.iterdir()
    edit("training/optimisation.py", "parameters.beta2", "parameters.beta2 * 1.0")
    refused = kill()
    assert "is this training with other code" in refused and str(begun) in refused
    assert "what differs: training/optimisation.py." in refused
    assert f"continuing from {begun}" in kill(**{CODE: "continue"})
    assert len(list(FOLDER.iterdir())) == 2 and list(begun.glob("step_*"))
    assert "continuing from checkpoints" in kill()
