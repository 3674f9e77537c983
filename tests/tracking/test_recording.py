import errno
import os
import socket

import pytest

from implicit_models.tracking import recording
from implicit_models.tracking.opening import flatten
from implicit_models.tracking.recording import SpoolTracker
from implicit_models.tracking.spool import Spool
from implicit_models.tracking.tracker import NullTracker, Tracker
from tests.tracking.killed import leave_as_killed

START = {
    **{"entry": "entry", "stage": "stage", "digest": "d", "dvc_stage": "stage@entry"},
    **{"experiment": "experiment", "tags": {}, "parameters": {}, "stage_parameters": {}},
}


@pytest.fixture
def spool(tmp_path):
    return Spool.new(tmp_path, "entry", "stage")


def events(spool, kind):
    return [event for event, _ in spool.events() if event["event"] == kind]


def values(spool, name, level="both"):
    return [
        (event["step"], event["values"][name])
        for event in events(spool, "metrics")
        if name in event["values"] and event["level"] == level
    ]


class FullDisk:
    """Stands in for os.write: takes part of the data, or none, until there is room."""

    def __init__(self, partial):
        self.is_full = True
        self.partial = partial
        self.write = os.write

    def __call__(self, descriptor, data):
        if not self.is_full:
            return self.write(descriptor, data)
        if self.partial:
            return self.write(descriptor, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")


def test_every_call_is_on_disk_when_it_returns(spool):
    tracker = SpoolTracker(spool, START)
    tracker.log_metrics({"loss": 2.5, "accuracy": 0.5}, step=10)
    tracker.log_metrics({"final": 1})
    kinds = [event["event"] for event, _ in spool.events()]
    assert kinds == ["start", "metrics", "metrics"]
    assert spool.start()["entry"] == "entry"
    assert values(spool, "loss") == [(10, 2.5)]
    assert values(spool, "final") == [(0, 1.0)]
    tracker.close()
    tracker.close()
    assert [event["status"] for event in events(spool, "end")] == ["FINISHED"]


def test_a_writer_is_seen_as_long_as_it_lives(spool):
    with SpoolTracker(spool, {}) as tracker:
        assert spool.is_being_written()
        with pytest.raises(BlockingIOError):
            SpoolTracker(spool, {})
        tracker.log_metrics({"loss": 1.0}, 0)
    assert not spool.is_being_written()


def test_a_new_spool_is_never_seen_without_its_writer(spool, monkeypatch):
    take_lock, seen = recording.take_lock, []

    def look_and_lock(descriptor, seconds):
        seen.extend(spool.path.parent.glob("*.jsonl"))
        return take_lock(descriptor, seconds)

    monkeypatch.setattr(recording, "take_lock", look_and_lock)
    SpoolTracker(spool, START).close()
    assert not seen and [spool.path] == list(spool.path.parent.iterdir())


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")]
)
def test_an_error_passes_and_is_the_status(spool, error, status):
    with pytest.raises(error), SpoolTracker(spool, {}):
        raise error
    assert events(spool, "end")[0]["status"] == status


def test_a_continued_spool_holds_every_step_once(spool):
    tracker = SpoolTracker(spool, START)
    for step in range(10):
        tracker.log_metrics({"loss": float(step)}, step)
    tracker.log_metrics({"validation": 0.5}, 4)
    tracker.log_metrics({"loss": -1.0}, 4, "entry")
    leave_as_killed(tracker)
    with spool.path.open("a") as file:
        file.write('{"event":"metrics","ti')

    with SpoolTracker(spool, {"entry": "ignored"}) as tracker:
        for step in range(6, 15):
            tracker.log_metrics({"loss": float(step), "validation": 0.5}, step)
        for step in (4, 5):
            tracker.log_metrics({"loss": -1.0}, step, "entry")
    assert values(spool, "loss") == [(step, float(step)) for step in range(15)]
    assert values(spool, "loss", "entry") == [(4, -1.0), (5, -1.0)]
    assert values(spool, "validation") == [(4, 0.5), *((step, 0.5) for step in range(6, 15))]
    assert spool.start()["entry"] == "entry"
    assert len(events(spool, "resume")) == len(events(spool, "end")) == 1


def test_a_spool_with_damaged_lines_is_continued_and_they_stay(spool):
    tracker = SpoolTracker(spool, START)
    for step in range(4):
        tracker.log_metrics({"loss": float(step)}, step)
    leave_as_killed(tracker)
    lines = spool.path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"loss", b"lost")
    lines += [b"[]\n", b"{}\n"]
    spool.path.write_bytes(b"".join(lines) + b'{"event": "metrics"')

    with SpoolTracker(spool, {"entry": "ignored"}) as tracker:
        for step in range(3, 6):
            tracker.log_metrics({"loss": float(step)}, step)
    assert values(spool, "loss") == [(step, float(step)) for step in (0, 2, 3, 4, 5)]
    assert spool.path.read_bytes().startswith(b"".join(lines))
    assert [each["status"] for each in events(spool, "end")] == ["FINISHED"]


@pytest.mark.parametrize("partial", [False, True])
def test_a_full_disk_warns_once_and_loses_nothing(spool, monkeypatch, caplog, partial):
    tracker = SpoolTracker(spool, {})
    disk = FullDisk(partial)
    monkeypatch.setattr(recording.os, "write", disk)
    for step in range(5):
        tracker.log_metrics({"loss": 1.0}, step)
    assert values(spool, "loss") == []
    disk.is_full = False
    tracker.log_metrics({"loss": 1.0}, 5)
    tracker.close()
    assert values(spool, "loss") == [(step, 1.0) for step in range(6)]
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


def test_an_unusable_folder_warns_and_never_raises(tmp_path, caplog):
    (tmp_path / ".tracking").write_text("in the way")
    with SpoolTracker(Spool.new(tmp_path, "entry", "stage"), {}) as tracker:
        tracker.log_metrics({"loss": 1.0}, 0)
        tracker.log_artifact(tmp_path / ".tracking")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "3 events could not be written and are lost" in caplog.text


def test_an_artifact_is_recorded_as_it_was(spool, tmp_path, caplog):
    figure = tmp_path / "figure.svg"
    model = tmp_path / "final"
    figure.write_text("before")
    model.mkdir()
    (model / "config.json").write_text("{}")
    with SpoolTracker(spool, {}) as tracker:
        tracker.log_artifact(figure, "figures")
        tracker.log_artifact(model)
        tracker.log_artifact(tmp_path / "missing")
        figure.write_text("after")
    first, second = events(spool, "artifact")
    assert (spool.artifact_folder / first["copy"]).read_text() == "before"
    assert first["folder"] == "figures"
    assert (spool.artifact_folder / second["copy"] / "config.json").exists()
    assert "missing is not recorded" in caplog.text


def test_parameters_are_flattened():
    model = {"family": "mamba2", "lengths": (16, 32)}
    nested = {"model": model, "seed": None, "empty": {}, "rate": 0.003}
    assert flatten(nested) == {
        "model.family": "mamba2",
        "model.lengths": "[16, 32]",
        "seed": "null",
        "empty": "{}",
        "rate": "0.003",
    }


def test_the_null_tracker_takes_every_call(tmp_path):
    tracker: Tracker = NullTracker()
    with pytest.raises(ValueError, match="passes"), tracker as entered:
        entered.log_metrics({"loss": 1.0}, step=1)
        entered.log_artifact(tmp_path)
        assert list(tmp_path.iterdir()) == []
        raise ValueError("passes")


def test_a_server_that_nobody_listens_at_is_named_at_once(tmp_path, caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        spool = Spool.new(tmp_path, "entry", "stage")
        with SpoolTracker(spool, START | {"destination": address}, lambda: None) as tracker:
            tracker.log_metrics({"loss": 1.0}, step=1)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and address in warnings[0] and "Nothing is lost" in warnings[0]
