"""What nobody foresaw in a point of a sweep is a failure with its reason, not a stop."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError

from pipelines.running import StoppedError, allow_all, stop_all
from pipelines.sweeps import flow, slots
from pipelines.sweeps.comparison import Sweep
from pipelines.sweeps.points import Origin, Point

POINT = Point("s-1", "steps=1", ("steps=1",), {})


@pytest.fixture
def running(tmp_path, monkeypatch) -> Sweep:
    """Return a sweep of one point, whose workspace there is none of."""

    def fail(*arguments: Any) -> None:
        raise KeyError("nobody foresaw it")

    monkeypatch.setattr(flow, "get_run_logger", lambda: logging.getLogger("run"))
    monkeypatch.setattr(flow, "is_done", lambda *arguments: False)
    monkeypatch.setattr(flow, "_workspace", fail)
    return Sweep(tmp_path, "s", Origin("0" * 40), [POINT])


def test_a_point_that_ends_by_an_unexpected_error_has_failed_and_says_why(running, caplog):
    state = flow.point_task.fn(running, Path(), POINT)
    assert state.is_failed()
    (row,) = running.rows
    assert (row.state, row.reason) == ("failed", "KeyError: 'nobody foresaw it'")
    (record,) = caplog.records
    assert record.exc_info and "steps=1 failed" in record.getMessage()


def test_shared_stages_that_end_by_an_unexpected_error_have_failed(running, caplog):
    state = flow.shared_task.fn(running, Path(), [POINT])
    assert state.is_failed() and not running.rows
    assert caplog.records[0].exc_info


def refused(cause: Exception) -> ConcurrencySlotAcquisitionError:
    """Return the error by which Prefect says that it has not got a slot."""
    error = ConcurrencySlotAcquisitionError("Unable to acquire concurrency slots on ['one']")
    error.__cause__ = cause
    return error


def answer(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://server")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status))


@pytest.fixture
def answers(monkeypatch) -> list[Exception]:
    """Make Prefect give these errors, one after the other, and then a slot."""
    given: list[Exception] = []

    @contextlib.contextmanager
    def concurrency(name: str, **options: Any) -> Iterator[None]:
        if given:
            raise refused(given.pop(0))
        yield

    monkeypatch.setattr(slots, "concurrency", concurrency)
    monkeypatch.setattr(slots, "_LOOK_SECONDS", 0.0)
    return given


def test_a_server_that_is_away_for_a_moment_is_waited_for(answers):
    answers += [answer(423), httpx.ConnectError("gone"), answer(503), answer(423)]
    log: list[str] = []
    with slots.held_slot("one", log.append):
        assert not answers
    assert [line.split(":")[0] for line in log] == [
        "waiting for a slot of the limit one",
        "Prefect's server does not answer",
        "waiting for a slot of the limit one",
    ]


def test_who_waits_for_a_server_can_be_stopped(answers):
    answers += [httpx.ConnectError("gone")] * 3
    try:
        with pytest.raises(StoppedError), slots.held_slot("one", lambda line: stop_all()):
            pass
    finally:
        allow_all()
    assert len(answers) == 2


@pytest.mark.parametrize("patience", [600.0, 0.0])
def test_a_refusal_or_a_server_that_stays_away_ends_the_wait(answers, monkeypatch, patience):
    monkeypatch.setattr(slots, "_SERVER_PATIENCE", patience)
    answers.append(answer(404) if patience else httpx.ConnectError("gone"))
    with pytest.raises(ConcurrencySlotAcquisitionError), slots.held_slot("one", print):
        pass
