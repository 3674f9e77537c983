"""What a node does around its stage: other flows beside it, and what is tracked."""

import ast
import contextlib
import os
from pathlib import Path

import pytest

from pipelines.cluster import assignment as module
from pipelines.cluster.assignment import Assignment, Dispatcher, do_assignment
from pipelines.cluster.exchange import make_request
from pipelines.cluster.placement import Place, Pool
from pipelines.dag import Stage
from pipelines.running import InfrastructureError, StageFailedError
from stages.training.exclusive import trained_by_one
from tests.pipelines.clones import Clones, commit, run
from tests.repositories import ROOT

TRAIN = """
import os, pathlib, sys
from stages.training import exclusive
pathlib.Path(".tracking/spool").touch()
print({name: text for name, text in os.environ.items() if name.startswith("MLFLOW_")}, flush=True)
exclusive._PATIENCE_SECONDS = 0.0
try:
    with exclusive.trained_by_one(pathlib.Path("checkpoints/x/train")):
        pass
except exclusive.TrainingBusyError as error:
    sys.exit(f"error: {error}\\n" + "the summary of torchrun\\n" * 20)
sys.exit("it cannot be done")
"""


@pytest.fixture
def training(clones: Clones) -> Clones:
    """Make a training that needs nothing, and fails."""
    (clones.caller / "train.py").write_text(TRAIN)
    description = clones.caller / "dvc.yaml"
    description.write_text(description.read_text().replace("      - data/x/part\n", ""))
    commit(clones.caller)
    clones.clone("one")
    return clones


def do(clones: Clones, log: list[str], **environment: str):
    place = Place(environment={"PYTHONPATH": str(ROOT), **environment})
    assignment = Assignment(make_request(clones.caller, "train@x"), place, 60.0)
    return do_assignment(clones.root / "one", assignment, log.append)


def test_a_node_that_is_at_another_training_of_the_entry_is_tried_again(training):
    log: list[str] = []
    folder = training.root / "one" / "checkpoints" / "x" / "train"
    with (
        trained_by_one(folder),
        pytest.raises(InfrastructureError, match="one is at another training .* tried again") as at,
    ):
        do(training, log)
    assert any("another process trains" in line for line in log)
    assert "workspaces" not in str(at.value)


def test_a_stage_is_given_out_anew_as_often_as_its_pool_says_and_no_more(clones):
    """Expect an error that nobody tries again: each try would give it out as often once more."""
    run(clones.caller, "dvc", "repro", "make")
    pool = Pool(kind="slurm", max_requeues=2, slurm={"time": 10})
    given = []
    dispatcher = Dispatcher(clones.caller, "a", pool, Place())
    with pytest.raises(StageFailedError, match="taken away 3 times; .*pools.a.max_requeues"):
        dispatcher.dispatch(Stage("train@x"), lambda line: None, given.append)
    assert len(given) == 3


SENDER = """import os, pathlib
pathlib.Path("sent").write_text(os.environ.get("MLFLOW_TRACKING_URI", ""))"""


def test_what_a_failed_stage_has_tracked_is_sent(training, monkeypatch):
    monkeypatch.setattr(module, "_SEND", ("-c", SENDER))
    with pytest.raises(StageFailedError, match="it cannot be done"):
        do(training, [])
    assert (training.root / "one" / "sent").exists()


def send(clone: Path, fault: Exception | None = None, *, has_begun: bool = True) -> list[str]:
    """End a stage that has something to be sent; return what is told."""
    (clone / ".tracking").mkdir()
    (clone / ".tracking" / "spool").touch()
    log: list[str] = []
    ended = contextlib.nullcontext() if fault is None else pytest.raises(type(fault))
    with ended, module._tracked_is_sent(clone, log.append) as variables:
        if has_begun:
            variables["A"] = "b"
        if fault is not None:
            raise fault
    return log


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("import sys; sys.exit('no answer')", "could not be sent yet: no answer"),
        ("import sys; sys.stderr.buffer.write(bytes([255])); sys.exit(1)", "sent yet: \ufffd"),
        ("import time; time.sleep(600)", "not all that is tracked is sent after 0 s; it is kept"),
    ],
)
def test_sending_hides_no_fault_of_the_stage(tmp_path, monkeypatch, command, told):
    monkeypatch.setattr(module, "_SEND", ("-c", command))
    monkeypatch.setattr(module, "_HURRIED_SECONDS", 0.2 if "sleep" in command else 60.0)
    (line,) = send(tmp_path, KeyError("the stage's own"))
    assert told in line


def test_a_sender_that_cannot_be_started_hides_no_fault(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))
    (line,) = send(tmp_path, KeyError("the stage's own"))
    assert "could not be sent yet: [Errno 2]" in line


@pytest.mark.parametrize(
    ("fault", "is_stopping", "seconds"),
    [(None, False, 120.0), (KeyError("its own"), False, 20.0), (None, True, 20.0)],
)
def test_after_a_fault_and_when_stopped_sending_is_short(
    tmp_path, monkeypatch, fault, is_stopping, seconds
):
    given = []
    monkeypatch.setattr(module, "_send_tracked", lambda *arguments: given.append(arguments[-1]))
    monkeypatch.setattr(module, "stopping", lambda: is_stopping)
    send(tmp_path, fault)
    assert given == [seconds]


def test_before_a_stage_has_begun_nothing_is_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SEND", ("-c", SENDER))
    send(tmp_path, KeyError("no commit"), has_begun=False)
    assert not (tmp_path / "sent").exists()


@pytest.mark.parametrize("given", ["sqlite:///runs.db", None])
def test_a_stage_tracks_into_the_nodes_clone_and_not_into_its_workspace(
    training, monkeypatch, given
):
    node = training.root / "one"
    expected = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{node}/{'runs' if given else 'mlflow'}.db",
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": f"{node}/kept",
    }
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    if given:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    monkeypatch.setattr(module, "_SEND", ("-c", SENDER))
    log: list[str] = []
    with pytest.raises(StageFailedError):
        do(training, log, MLFLOW_DEFAULT_ARTIFACT_ROOT="kept")
    assert expected in [ast.literal_eval(line) for line in log if line.startswith("{")]
    assert (node / "sent").read_text() == expected["MLFLOW_TRACKING_URI"]
