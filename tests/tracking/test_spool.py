import pytest

from implicit_models.tracking import spool as spool_module
from implicit_models.tracking.spool import (
    SentState,
    Spool,
    all_spools,
    line_of,
    locked,
    open_spools,
)

START = {
    **{"event": "start", "time": 1, "entry": "entry", "stage": "stage", "digest": "d"},
    **{"dvc_stage": "stage@entry", "experiment": "experiment"},
    **{"tags": {}, "parameters": {}, "stage_parameters": {}},
}
END = {"event": "end", "time": 2, "status": "FINISHED"}


@pytest.fixture
def spool(tmp_path):
    spool = Spool.new(tmp_path, "an entry/with signs", "train_free")
    spool.path.parent.mkdir()
    return spool


def write(spool, *texts):
    with spool.path.open("a") as file:
        file.writelines(texts)


def line(**event):
    return line_of(event).decode()


def test_events_are_read_from_any_acknowledged_offset(spool):
    events = [END | {"step": step} for step in range(5)]
    write(spool, *(line(**event) for event in events))
    read = list(spool.events())
    assert [event for event, _ in read] == events
    for index, (_, end) in enumerate(read):
        assert [event for event, _ in spool.events(end)] == events[index + 1 :]
    assert read[-1][1] == spool.size()


@pytest.mark.parametrize("torn", ['{"event": "metrics", "st', '{"event": "metrics"}', "{"])
def test_a_torn_last_line_is_left_alone_until_it_is_complete(spool, torn):
    write(spool, line(**START), torn)
    assert [event["event"] for event, _ in spool.events()] == ["start"]


DAMAGED = {
    "zeros": '{"event": "met\0\0',
    "nothing": "",
    "a list": "[]",
    "null": "null",
    "text": '"start"',
    "no kind": "{}",
    "an unknown kind": '{"event": "none"}',
    "without a checksum": '{"event": "metrics", "step": 1, "level": "both", "values": {"loss": 1}}',
    "nested too deeply": "[" * 100_000,
    "a number of 5,000 digits": "1" * 5000,
    "another value": line_of({"event": "metrics", "step": 14}).decode().strip().replace("14", "12"),
    "another checksum": line_of(END).decode().strip()[:-3] + 'zz"}',
    "cut in half": line_of({"event": "metrics", "values": {"loss": 1.5}}).decode()[:30],
    "two in one": line_of(END).decode().strip() * 2,
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_costs_only_itself_and_is_named_once(spool, text, caplog):
    write(spool, line(**START), text + "\n", line(**END))
    for _ in range(2):
        assert [event["event"] for event, _ in spool.events()] == ["start", "end"]
    (message,) = caplog.messages
    assert f"{spool.path}, line 2 is left out" in message


def test_a_damaged_line_is_numbered_from_the_beginning_wherever_reading_began(spool, caplog):
    write(spool, line(**START), line(event="resume"), "\xff\n", line(**END))
    (_, first), *_ = spool.events()
    spool_module._named.clear()
    caplog.clear()
    assert [event["event"] for event, _ in spool.events(first)] == ["resume", "end"]
    assert "line 3 is left out" in caplog.text


def test_every_changed_byte_is_noticed(spool):
    """In no place does one flipped bit leave another event, but for the end of a line."""
    event = {"event": "metrics", "step": 14, "level": "both", "values": {"loss": 0.125}}
    whole = line_of(event)
    spool.path.write_bytes(whole)
    assert [each for each, _ in spool.events()] == [event]
    for place in range(len(whole) - 1):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            spool.path.write_bytes(damaged)
            assert [each for each, _ in spool.events()] in ([], [event]), (place, bit)


def test_a_spool_whose_beginning_is_lost_is_set_aside(spool, tmp_path, caplog):
    write(spool, "?\n", line(**END))
    spool.artifact_folder.mkdir()
    (spool.artifact_folder / "kept").touch()
    content = spool.path.read_bytes()
    spool.set_aside_if_lost()
    spool.set_aside_if_lost()
    assert open_spools(tmp_path) == all_spools(tmp_path) == []
    folder = spool.path.parent / "damaged"
    assert (folder / spool.path.name).read_bytes() == content
    assert (folder / spool.artifact_folder.name / "kept").exists()
    assert "does not say what run it is of" in caplog.text


@pytest.mark.parametrize("content", ["", '{"event": "sta', line(**START)])
def test_a_spool_that_only_begins_is_not_set_aside(spool, tmp_path, content):
    write(spool, content)
    spool.set_aside_if_lost()
    assert open_spools(tmp_path) == [spool]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"unknown": 1}', '{"offset": 7}', "\xff"])
def test_unreadable_sent_state_starts_from_the_beginning(spool, content):
    spool._sent_path.write_text(content, encoding="latin-1")
    assert spool.read_sent() == SentState()


def test_sent_state_is_read_as_written(spool):
    sent = SentState(offset=7, destination="d", run_id="a", parent_run_id="b", status="RUNNING")
    spool.write_sent(sent)
    assert spool.read_sent() == sent


def test_a_lock_is_held_once(tmp_path):
    with locked(tmp_path / "lock") as first, locked(tmp_path / "lock", seconds=0) as second:
        assert first
        assert not second
    with locked(tmp_path / "lock", seconds=0) as again:
        assert again


def test_a_retired_spool_keeps_its_events_and_sent_state(spool, tmp_path):
    write(spool, line(**START))
    spool.write_sent(SentState(offset=3))
    spool.artifact_folder.mkdir()
    spool.retire()
    assert open_spools(tmp_path) == []
    (kept,) = all_spools(tmp_path)
    assert kept.start() == START
    assert kept.read_sent() == SentState(offset=3)
    assert [path.name for path in spool.path.parent.iterdir()] == ["sent"]


def test_spools_are_listed_by_age(tmp_path):
    spools = [Spool.new(tmp_path, entry, "train_free") for entry in ("b", "c", "a")]
    spools[0].path.parent.mkdir()
    for spool in spools:
        write(spool, line(**START))
    assert open_spools(tmp_path) == all_spools(tmp_path) == spools
