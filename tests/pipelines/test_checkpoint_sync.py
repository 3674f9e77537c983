"""Checkpoints that a node keeps in the DVC remote, and remotes that do not answer."""

import hashlib
from pathlib import Path

import pytest
from dvc.config import NoRemoteError

from pipelines.cluster import checkpoint_sync
from pipelines.cluster.checkpoint_sync import CheckpointSync
from pipelines.cluster.remote import faults
from pipelines.running import InfrastructureError, StageFailedError, StoppedError
from stages.finished_checkpoints import mark_finished
from tests.pipelines.tiny import wait_until


class EndpointConnectionError(Exception):
    """An error of a library, as botocore's and asyncssh's: neither DVC's nor the system's."""


def checkpoint(root: Path, training: str, step: int) -> Path:
    folder = root / "checkpoints" / "x" / training / f"step_{step}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text("w" * step)
    (folder / "progress.json").write_text("{}")
    return folder


@pytest.fixture
def syncs(clones):
    made = [CheckpointSync(clones.clone(name), "x") for name in ("one", "two")]
    yield made
    for each in made:
        each.close()


def test_a_checkpoint_is_fetched_whole_or_not_at_all(clones, syncs):
    first, second = syncs
    checkpoint(clones.root / "one", "train/a", 1)
    assert first.copy() == ["checkpoints/x/train/a/step_1"]
    assert first.copy() == []
    checkpoint(clones.root / "one", "train/a", 2)
    first.copy()
    (clones.remote / "checkpoints/x/train/a/step_2/progress.json").unlink()
    assert second.fetch() == []
    assert not list((clones.root / "two/checkpoints").rglob("weights"))


def finish(root: Path, training: str, metrics: str) -> str:
    """Finish a training as its stage does; return the hash that DVC has of the metrics."""
    file = root / "metrics.json"
    file.write_text(metrics)
    mark_finished(root / "checkpoints" / "x" / training, file)
    return hashlib.md5(metrics.encode()).hexdigest()


def test_trainings_of_others_are_left_alone(clones, syncs):
    """Another flow's training of the same entry goes on in the same folder, or has just ended."""
    first, second = syncs
    checkpoint(clones.root / "one", "train/a", 1)
    first.copy()
    assert second.fetch() == ["checkpoints/x/train/a/step_1"]
    for training in ("train/b", "train/running", "train/ended", "free/running"):
        checkpoint(clones.root / "two", training, 1)
    metrics = finish(clones.root / "two", "train/b", '{"score": 1}')
    finish(clones.root / "two", "train/ended", '{"score": 2}')
    second.copy()
    second.discard({metrics, "0" * 32}, print)
    remote, here = (each / "checkpoints/x" for each in (clones.remote, clones.root / "two"))
    assert sorted(path.name for path in (remote / "train").iterdir()) == ["a", "ended", "running"]
    assert sorted(path.name for path in (here / "train").iterdir()) == ["ended", "running"]
    assert (here / "free/running/step_1/weights").exists()
    assert (clones.root / "one/checkpoints/x/train/a/step_1").exists()


def test_what_was_fetched_stays_where_another_flow_goes_on_from_it(clones, syncs):
    first, second = syncs
    checkpoint(clones.root / "one", "train/a", 1)
    first.copy()
    second.fetch()
    checkpoint(clones.root / "two", "train/a", 2)
    second.discard((), print)
    assert (clones.root / "two/checkpoints/x/train/a/step_2/weights").exists()


def test_small_files_of_a_training_travel_along(clones, syncs):
    first, second = syncs
    step = checkpoint(clones.root / "one", "train/a", 1)
    (step.parent / "training.json").write_text("{}")
    first.copy()
    second.fetch()
    assert (clones.root / "two/checkpoints/x/train/a/training.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("error", "expected", "told"),
    [
        (EndpointConnectionError("no endpoint"), InfrastructureError, "stage x could .*: no endp"),
        (EndpointConnectionError(), InfrastructureError, "exchanged: EndpointConnectionError"),
        (OSError("no route"), InfrastructureError, "the results of stage x could .*: no route"),
        (InfrastructureError("2 files"), InfrastructureError, "^2 files$"),
        (StageFailedError("its own"), StageFailedError, "^its own$"),
        (StoppedError("stopped"), StoppedError, "^stopped$"),
        (NoRemoteError("none"), StageFailedError, "there is no DVC remote"),
        (ImportError("dvc-ssh"), StageFailedError, "cannot be used here: dvc-ssh"),
    ],
)
def test_whose_fault_it_is_that_something_does_not_travel(error, expected, told):
    with pytest.raises(expected, match=told), faults("the results of", "x"):
        raise error


def test_after_an_error_of_the_remotes_library_copies_go_on(clones, syncs, monkeypatch):
    tries = []

    def put(*arguments) -> None:
        tries.append(arguments)
        if len(tries) == 1:
            raise EndpointConnectionError("no endpoint")
        real(*arguments)

    real = checkpoint_sync.put
    monkeypatch.setattr(checkpoint_sync, "put", put)
    checkpoint(clones.root / "one", "train/a", 1)
    log: list[str] = []
    with syncs[0].copying(0.01, log.append):
        wait_until(lambda: "checkpoints/x/train/a/step_1 is in the remote" in log)
    assert "not be copied to the remote (no endpoint); trying again" in log[0]
    assert (clones.remote / "checkpoints/x/train/a/step_1/progress.json").exists()


def test_a_stage_that_is_stopped_says_so_where_the_remote_is_away(clones, syncs, monkeypatch):
    def put(*arguments) -> None:
        raise EndpointConnectionError("no endpoint")

    monkeypatch.setattr(checkpoint_sync, "put", put)
    checkpoint(clones.root / "one", "train/a", 1)
    log: list[str] = []
    with pytest.raises(StoppedError), syncs[0].copying(60.0, log.append):
        raise StoppedError("stopped")
    assert "(no endpoint)" in log[0]


def test_a_stage_is_done_where_the_remote_keeps_its_checkpoints(clones, syncs, monkeypatch):
    def rm(*arguments, **options) -> None:
        raise EndpointConnectionError("no endpoint")

    checkpoint(clones.root / "one", "train/a", 1)
    metrics = finish(clones.root / "one", "train/a", "{}")
    syncs[0].copy()
    monkeypatch.setattr(syncs[0]._remote.fs, "rm", rm)
    log: list[str] = []
    syncs[0].discard({metrics}, log.append)
    assert "checkpoints/x/train/a in the remote could not be deleted (no endpoint)" in log[0]
    assert not (clones.root / "one/checkpoints/x").exists()
