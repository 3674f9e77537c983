import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from implicit_models.evaluation.score_store import ScoreStore, ScoreStoreError, measure_batches


class Interrupted(Exception):
    pass


class Measure:
    """Ragged arrays of each batch; breaks off at one of them."""

    def __init__(self, breaks_at=None):
        self.breaks_at, self.seen = breaks_at, []

    def __call__(self, batch):
        if batch == self.breaks_at:
            raise Interrupted
        self.seen.append(batch)
        return {"squares": np.full(batch % 3, batch**2), "names": np.array([f"b{batch}"])}


def _run(measure, store, part="part"):
    return measure_batches(range(10), measure, store=store, part=part, description="test")


def _same(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("breaks_at", [0, 1, 5, 9])
def test_what_was_interrupted_goes_on_with_the_next_batch_and_ends_the_same(tmp_path, breaks_at):
    expected = _run(Measure(), None)
    store = ScoreStore(tmp_path / "kept" / "store", "a" * 64)
    with pytest.raises(Interrupted):
        _run(Measure(breaks_at), store)
    again = Measure()
    _same(_run(again, store), expected)
    assert again.seen == list(range(breaks_at, 10))
    finished = Measure()
    _same(_run(finished, store), expected)
    assert finished.seen == []


def test_parts_and_identities_are_kept_apart(tmp_path):
    store = ScoreStore(tmp_path / "store", "a" * 64)
    _run(Measure(), store)
    for other, part in (
        (store, "another part"),
        (ScoreStore(tmp_path / "other", "b" * 64), "part"),
        (ScoreStore(tmp_path / "store", "b" * 64), "part"),
    ):
        measure = Measure()
        _run(measure, other, part)
        assert len(measure.seen) == 10
    with store:
        assert store.batches("part") == store.batches("another part") == []


_KILLED = """
import os, sys
import numpy as np
from implicit_models.evaluation.score_store import ScoreStore, measure_batches

def measure(batch):
    if batch == 6:
        os.kill(os.getpid(), 9)
    return {"squares": np.full(batch % 3, batch**2), "names": np.array([f"b{batch}"])}

store = ScoreStore(sys.argv[1], "a" * 64)
measure_batches(range(10), measure, store=store, part="part", description="test")
"""


def test_a_killed_process_loses_no_more_than_its_batch(tmp_path):
    command = [sys.executable, "-c", _KILLED, tmp_path / "store"]
    killed = subprocess.run(command, cwd=Path(__file__).parents[2])
    assert killed.returncode == -9
    store, again = ScoreStore(tmp_path / "store", "a" * 64), Measure()
    _same(_run(again, store), _run(Measure(), None))
    assert again.seen == [6, 7, 8, 9]
    with store:
        assert len(store.batches("part")) == 10


def test_a_batch_is_there_whole_or_not_at_all(tmp_path):
    class Unfit(str):
        def __conform__(self, protocol):
            raise sqlite3.ProgrammingError("of the test")

    with ScoreStore(tmp_path / "store", "a" * 64) as store:
        with pytest.raises(sqlite3.Error):
            store.add("part", 0, {"first": np.ones(2), Unfit("second"): np.ones(2)})
        with pytest.raises(TypeError, match="object cannot be kept"):
            store.add("part", 0, {"first": np.ones(2), "second": np.array([object()])})
        assert store.batches("part") == []


@pytest.mark.parametrize("kept", [100, 3000, 9000])
def test_a_damaged_file_is_measured_anew(tmp_path, caplog, kept):
    file = tmp_path / "store"
    expected = _run(Measure(), ScoreStore(file, "a" * 64))
    content = file.read_bytes()
    assert len(content) > kept
    file.write_bytes(content[:kept])
    measure = Measure()
    _same(_run(measure, ScoreStore(file, "a" * 64)), expected)
    assert len(measure.seen) == 10
    assert f"{file} cannot be used" in caplog.text


def test_a_file_of_something_else_is_left_alone(tmp_path):
    file = tmp_path / "store"
    file.write_text("this is no store, but some text that is long enough " * 9)
    with pytest.raises(ScoreStoreError, match="delete it to begin anew"):
        _run(Measure(), ScoreStore(file, "a" * 64))
    assert file.read_text().startswith("this is no store")
    with contextlib.closing(sqlite3.connect(tmp_path / "database")) as database, database:
        database.execute("CREATE TABLE addresses (name TEXT)")
    with pytest.raises(ScoreStoreError, match="holds addresses, and no evaluation"):
        _run(Measure(), ScoreStore(tmp_path / "database", "a" * 64))


def test_discarding_leaves_nothing_but_other_evaluations(tmp_path):
    folder = tmp_path / "kept"
    stores = [ScoreStore(folder / name, name * 64) for name in "ab"]
    for store in stores:
        _run(Measure(), store)
    stores[0].discard()
    assert {path.name for path in folder.iterdir()} == {"b"}
    with stores[1]:
        assert stores[1].batches("part")
    stores[1].discard()
    assert not folder.exists()
    stores[1].discard()  # again does no harm
