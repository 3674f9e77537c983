"""Checkpoints that a node keeps in the DVC remote, and remotes that do not answer."""

from pathlib import Path

import pytest
from dvc.config import NoRemoteError

from pipelines.cluster import checkpoint_sync
from pipelines.cluster.checkpoint_sync import CheckpointSync
from pipelines.cluster.remote import faults
from pipelines.running import InfrastructureError, StageFailedError, StoppedError
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


def test_trainings_of_others_are_left_alone(clones, syncs):
    first, second = syncs
    checkpoint(clones.root / "one", "train/a", 1)
    first.copy()
    assert second.fetch() == ["checkpoints/x/train/a/step_1"]
    checkpoint(clones.root / "two", "train/b", 1)
    second.copy()
    second.discard(print)
    remote = clones.remote / "checkpoints/x/train"
    assert [path.name for path in remote.iterdir()] == ["a"]
    assert not (clones.root / "two/checkpoints/x").exists()
    assert (clones.root / "one/checkpoints/x/train/a/step_1").exists()


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
    syncs[0].copy()
    monkeypatch.setattr(syncs[0]._remote.fs, "rm", rm)
    log: list[str] = []
    syncs[0].discard(log.append)
    assert "checkpoints/x/train/a in the remote could not be deleted (no endpoint)" in log[0]
    assert not (clones.root / "one/checkpoints/x").exists()
