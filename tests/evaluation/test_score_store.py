import numpy as np
import pytest

from implicit_models.evaluation.score_store import ScoreStore, measure_batches


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
    store = ScoreStore(folder=tmp_path / "kept", identity="a" * 64, seconds_between=0.0)
    with pytest.raises(Interrupted):
        _run(Measure(breaks_at), store)
    again = Measure()
    _same(_run(again, store), expected)
    assert again.seen == list(range(breaks_at, 10))
    finished = Measure()
    _same(_run(finished, store), expected)
    assert finished.seen == []


def test_parts_and_identities_are_kept_apart(tmp_path):
    store = ScoreStore(folder=tmp_path, identity="a" * 64, seconds_between=0.0)
    _run(Measure(), store)
    for other, part in (
        (store, "another part"),
        (ScoreStore(folder=tmp_path, identity="b" * 64), "part"),
    ):
        measure = Measure()
        _run(measure, other, part)
        assert len(measure.seen) == 10


def test_writing_waits_its_time_but_the_end_is_written(tmp_path):
    store = ScoreStore(folder=tmp_path, identity="a" * 64, seconds_between=3600.0)
    with pytest.raises(Interrupted):
        _run(Measure(8), store)
    assert store.load("part") == {}
    _run(Measure(), store)
    assert int(store.load("part")["num_batches"]) == 10


def test_a_damaged_file_is_measured_anew(tmp_path, caplog):
    store = ScoreStore(folder=tmp_path, identity="a" * 64)
    expected = _run(Measure(), store)
    (file,) = tmp_path.rglob("*.npz")
    file.write_bytes(file.read_bytes()[:100])
    measure = Measure()
    _same(_run(measure, store), expected)
    assert len(measure.seen) == 10
    assert f"{file} cannot be used" in caplog.text


def test_discarding_leaves_nothing_but_other_evaluations(tmp_path):
    folder = tmp_path / "kept"
    stores = [ScoreStore(folder=folder, identity=name * 64) for name in "ab"]
    for store in stores:
        _run(Measure(), store)
    stores[0].discard()
    assert stores[0].load("part") == {} and stores[1].load("part")
    stores[1].discard()
    assert not folder.exists()
    stores[1].discard()  # again does no harm
