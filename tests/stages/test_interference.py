"""What others do while a stage runs: edit its parameters, or run it too."""

from pathlib import Path

import pytest

from stages import code_dependencies, recorded_code
from stages.training import exclusive, segment
from stages.training.exclusive import TrainingBusyError, remove_unused, trained_by_one
from tests.fuzz.answers import ask
from tests.stages.in_process import send_nothing
from tests.stages.small_training import BASELINE, replace_in_parameters, write_project

STAGE = "training.train_baseline"


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch) -> Path:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    send_nothing(monkeypatch)
    return tmp_path


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("hidden_size: 40", "hidden_size: 48", f"baselines.{BASELINE}.model.hidden_size = 48"),
        ("log_every: 1", "log_every: 2", "monitoring.log_every = 2 (it was 1)"),
        ("  s3_gpt2:", "  renamed:", None),  # another entry's affair
    ],
)
def test_parameters_that_are_edited_while_a_stage_runs(monkeypatch, before, after, said):
    train = segment.train

    def edited(*arguments):
        replace_in_parameters(before, after)
        return train(*arguments)

    monkeypatch.setattr(segment, "train", edited)
    found = ask(STAGE, BASELINE)
    if said is None:
        assert found.kind == "done", found.said
    else:
        assert found.kind == "refused", found.said
        assert said in found.said
        assert "has changed while the stage ran" in found.said


def test_code_that_is_edited_after_it_was_noted(monkeypatch):
    noted = code_dependencies.digests(["implicit_models.backbones.stack"])
    settings = {f"baselines.{BASELINE}.evaluation": "of no file"}
    lines = [f"{digest}  {path}\n" for path, digest in (noted | settings).items()]
    Path("code", "train").mkdir(parents=True)
    Path("code", "train", BASELINE).write_text("".join(lines))
    monkeypatch.setenv("DVC_STAGE", f"../clone@2/dvc.yaml:train_baseline@{BASELINE}")
    digests = recorded_code.code_digests

    def edited(folder):
        return {**digests(folder), "backbones/stack.py": "another", "bars.py": "another"}

    monkeypatch.setattr(recorded_code, "code_digests", edited)
    found = ask(STAGE, BASELINE)
    assert found.kind == "refused", found.said
    assert "implicit_models/backbones/stack.py has changed since the stage `code`" in found.said
    assert not Path("models").exists()
    monkeypatch.setattr(recorded_code, "code_digests", digests)
    assert ask(STAGE, BASELINE).kind == "done"


def test_two_at_the_same_training(monkeypatch):
    monkeypatch.setattr(exclusive, "_PATIENCE_SECONDS", 0.2)
    folder = Path("checkpoints", BASELINE, "train_baseline")
    with trained_by_one(folder):
        found = ask(STAGE, BASELINE)
    assert found.kind == "refused"
    assert f"another process trains with the checkpoints in {folder}" in found.said
    assert not Path("models").exists()
    assert ask(STAGE, BASELINE).kind == "done"


def test_a_training_keeps_the_folder_that_it_has_locked_and_takes_no_removed_one(monkeypatch):
    monkeypatch.setattr(exclusive, "_PATIENCE_SECONDS", 0.2)
    folder = Path("checkpoints", BASELINE, "train_baseline")
    with trained_by_one(folder):
        remove_unused(folder)
        assert folder.is_dir()
        with pytest.raises(TrainingBusyError), trained_by_one(folder):
            pass
    flock, locked = exclusive.fcntl.flock, []

    def removed_first(descriptor, how):
        if not locked:
            folder.rmdir()
        locked.append(descriptor)
        return flock(descriptor, how)

    monkeypatch.setattr(exclusive.fcntl, "flock", removed_first)
    with trained_by_one(folder):  # of a new folder, which others find
        assert len(locked) == 2
        with pytest.raises(TrainingBusyError), trained_by_one(folder):
            pass
    remove_unused(folder)
    assert not folder.exists()


def test_a_file_system_without_locks(monkeypatch):
    def refuse(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(exclusive.fcntl, "flock", refuse)
    with trained_by_one(Path("checkpoints")):
        assert Path("checkpoints").is_dir()


def test_data_that_nothing_describes_are_named_before_dvc_looks_for_them():
    replace_in_parameters("dataset: s3", "dataset: s4")
    found = ask("code", "")
    assert found.kind == "refused"
    assert "dataset = 's4' is not allowed" in found.said
    assert not Path("code").exists()
