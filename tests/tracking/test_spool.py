import json

import pytest

from implicit_models.tracking.spool import (
    SentState,
    Spool,
    all_spools,
    locked,
    open_spools,
)


@pytest.fixture
def spool(tmp_path):
    spool = Spool.new(tmp_path, "an entry/with signs", "train_free")
    spool.path.parent.mkdir()
    return spool


def write(spool, *texts):
    with spool.path.open("a") as file:
        file.writelines(texts)


def line(**event):
    return json.dumps(event) + "\n"


def test_events_are_read_from_any_acknowledged_offset(spool):
    events = [{"event": "metrics", "step": step} for step in range(5)]
    write(spool, *(line(**event) for event in events))
    read = list(spool.events())
    assert [event for event, _ in read] == events
    for index, (_, end) in enumerate(read):
        assert [event for event, _ in spool.events(end)] == events[index + 1 :]
    assert read[-1][1] == spool.size()


@pytest.mark.parametrize("torn", ['{"event": "metrics", "st', '{"event": "metrics"}', "{"])
def test_a_torn_last_line_is_left_alone_until_it_is_complete(spool, torn):
    write(spool, line(event="start"), torn)
    assert [event["event"] for event, _ in spool.events()] == ["start"]


def test_a_damaged_line_costs_only_itself(spool, caplog):
    write(spool, line(event="start"), '{"event": "met\0\0\n', line(event="end"))
    assert [event["event"] for event, _ in spool.events()] == ["start", "end"]
    assert "not JSON" in caplog.text


@pytest.mark.parametrize("content", ["", "{", "[]", '{"unknown": 1}'])
def test_unreadable_sent_state_starts_from_the_beginning(spool, content):
    spool._sent_path.write_text(content)
    assert spool.read_sent() == SentState()


def test_sent_state_is_read_as_written(spool):
    sent = SentState(offset=7, destination="d", run_id="a", parent_run_id="b", status="RUNNING")
    spool.write_sent(sent)
    assert spool.read_sent() == sent


def test_a_lock_is_held_once(tmp_path):
    with locked(tmp_path / "lock") as first, locked(tmp_path / "lock", wait=False) as second:
        assert first
        assert not second
    with locked(tmp_path / "lock", wait=False) as again:
        assert again


def test_a_retired_spool_keeps_its_events_and_sent_state(spool, tmp_path):
    write(spool, line(event="start"))
    spool.write_sent(SentState(offset=3))
    spool.artifact_folder.mkdir()
    spool.retire()
    assert open_spools(tmp_path) == []
    (kept,) = all_spools(tmp_path)
    assert kept.start() == {"event": "start"}
    assert kept.read_sent() == SentState(offset=3)
    assert [path.name for path in spool.path.parent.iterdir()] == ["sent"]


def test_spools_are_listed_by_age(tmp_path):
    spools = [Spool.new(tmp_path, entry, "train_free") for entry in ("b", "c", "a")]
    spools[0].path.parent.mkdir()
    for spool in spools:
        write(spool, line(event="start"))
    assert open_spools(tmp_path) == all_spools(tmp_path) == spools
