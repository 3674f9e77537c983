"""The checkpoints of a finished training go when DVC has recorded it, and not before."""

import logging
from pathlib import Path

import pytest

from stages.finished_checkpoints import discard_recorded, is_finished, mark_finished

METRICS = "d41d8cd98f00b204e9800998ecf8427e"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the checkpoints of a training that has just finished."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "metrics.json").touch()
    found = tmp_path / "checkpoints" / "name" / "train_free" / "0123456789abcdef"
    (found / "step_000000004").mkdir(parents=True)
    mark_finished(found, tmp_path / "metrics.json")
    return found


def record(*digests: str) -> None:
    lines = (f"      md5: {digest}\n      size: 0\n" for digest in digests)
    Path("dvc.lock").write_text("".join(lines))


def test_recorded_ones_go(folder: Path):
    assert is_finished(folder)
    discard_recorded("name")
    record("0" * 32)
    discard_recorded("name")
    assert is_finished(folder)
    record("0" * 32, METRICS)
    discard_recorded("another")
    assert is_finished(folder)
    discard_recorded("name")
    assert not folder.parents[1].exists()


@pytest.mark.parametrize("mark", [b"", b"\n", b"size", b"\xff\xfe", METRICS[:8].encode()])
def test_a_damaged_mark_throws_nothing_away(
    folder: Path, caplog: pytest.LogCaptureFixture, mark: bytes
):
    (folder / "finished").write_bytes(mark)
    record(METRICS)
    with caplog.at_level(logging.WARNING):
        discard_recorded("name")
    assert (folder / "step_000000004").is_dir()
    (message,) = caplog.messages
    assert message.startswith("checkpoints/name/train_free/0123456789abcdef/finished is damaged")
    assert "rm -r checkpoints/name/train_free/0123456789abcdef" in message


def test_a_lock_that_is_no_text_records_nothing(folder: Path):
    Path("dvc.lock").write_bytes(b"\xff\xfe md5: " + METRICS[:16].encode())
    discard_recorded("name")
    assert is_finished(folder)
