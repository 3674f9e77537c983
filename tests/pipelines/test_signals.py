"""When a signal asks for the end once more, and when it is an echo of the first."""

import contextlib
import signal

import pytest

from pipelines import signals, stopping, terminal
from pipelines.outcomes import Outcomes

TERM, HUP, INT = signal.SIGTERM, signal.SIGHUP, signal.SIGINT


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("first", "number", "after", "repeats"),
    [
        (TERM, TERM, 0.1, False),  # handed on by the command, or sent to the group
        (TERM, TERM, 2.0, True),
        (HUP, TERM, 0.1, False),
        (HUP, TERM, 2.0, False),  # of who ends the session
        (TERM, HUP, 2.0, False),
        (HUP, HUP, 2.0, False),
        (INT, INT, 0.1, True),
        (TERM, INT, 0.1, True),
        (INT, TERM, 0.1, False),
    ],
)
def test_a_second_wish_is_told_from_an_echo(clock, first, number, after, repeats):
    insistence = signals.Insistence()
    assert not insistence.repeats(first)
    clock[0] += after
    assert insistence.repeats(number) is repeats


@pytest.mark.parametrize(("first", "cleared", "said"), [(HUP, [1], HUP), (TERM, [], TERM)])
def test_what_clears_up_is_interrupted_by_a_second_wish_alone(clock, first, cleared, said):
    outcomes = Outcomes()
    done = []
    with pytest.raises(KeyboardInterrupt), terminal.signals_interrupt(outcomes):
        try:
            signal.raise_signal(first)
        finally:
            clock[0] += 2.0
            signal.raise_signal(HUP)
            signal.raise_signal(TERM)
            done.append(1)
    assert (done, outcomes.stopped_by) == (cleared, said)


@pytest.mark.usefixtures("clock")
def test_the_second_ctrl_c_interrupts_what_follows_a_flow_that_the_first_has_stopped(monkeypatch):
    outcomes, stopped = Outcomes(), []
    monkeypatch.setattr(stopping, "stop_all", lambda **given: stopped.append(given))
    monkeypatch.setattr(stopping, "_cancelled_elsewhere", contextlib.nullcontext)
    with pytest.raises(KeyboardInterrupt), terminal.signals_interrupt(outcomes):
        with stopping.stopped_from_outside(outcomes):
            signal.raise_signal(INT)
        assert stopped == [{}]
        signal.raise_signal(INT)
        pytest.fail("went on")
    assert outcomes.stopped_by == INT
