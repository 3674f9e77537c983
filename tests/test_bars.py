"""Bars are silent by default, bars on a terminal, and a line every ten seconds elsewhere."""

import contextlib
import io
import logging
import os
import pty
import termios

import pytest

from implicit_models.bars import bar
from implicit_models.display import Lines, displayed, on_terminal, showing


class Clock:
    """A clock that stands still until it is told otherwise."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def lines():
    """Return a function that tells what was written, and the clock."""
    stream, clock = io.StringIO(), Clock()
    with showing(Lines(stream, clock)):
        yield lambda: stream.getvalue().splitlines(), clock


def test_a_loop_is_silent_unless_somebody_shows_it(capfd):
    with bar(3, "work", "step") as counted:
        counted.update()
        counted.note(loss="1.0")
    assert capfd.readouterr() == ("", "")


def test_a_line_every_ten_seconds_with_count_rate_and_time_left(lines):
    written, clock = lines
    with bar(1200, "bounded", "step", start=200) as counted:
        for _ in range(400):
            clock.seconds += 0.0625
            counted.note(loss="0.345")
            counted.update()
        assert [line.split(", ")[0] for line in written()] == [
            f"bounded: step {count} of 1,200 ({share}%)" for count, share in ((360, 30), (520, 43))
        ]
        assert written()[0] == (
            "bounded: step 360 of 1,200 (30%), loss 0.345, 16 steps/s, 52 s left"
        )
    assert written()[-1] == "bounded: step 600 of 1,200 (50%) in 25 s, loss 0.345, 16 steps/s"


def test_the_forecast_is_of_the_steps_after_the_first(lines):
    written, clock = lines
    with bar(100, "free", "step") as counted:
        clock.seconds += 8  # loads, compiles and tunes
        counted.update()
        for _ in range(8):
            clock.seconds += 0.25
            counted.update()
    assert written()[0] == "free: step 9 of 100 (9%), 4.0 steps/s, 23 s left"


def test_the_forecast_of_a_terminal_is_of_the_steps_after_the_first(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("tqdm.std.time", clock)
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        counted = on_terminal(terminal)(100, "free", "step", 0)
        clock.seconds += 800
        counted.update()
        for _ in range(8):
            clock.seconds += 0.25
            counted.update()
        counted.close()
    assert "9/100 [00:02<00:22,  4.00step/s]" in read_all(leader)


def test_what_is_short_says_nothing(lines):
    written, clock = lines
    for _ in range(20):
        with bar(10, "length 5", "batch") as counted:
            clock.seconds += 0.4
            counted.update(10)
    assert written() == []


def test_bars_inside_another_one_share_its_line(lines):
    written, clock = lines
    with bar(4, "sweep", "point") as points:
        points.update()
        with bar(64, "8 self-iterations", "sequence") as sequences:
            clock.seconds += 12
            sequences.update(16)
    assert written()[0] == (
        "sweep: point 1 of 4 (25%), 12.0 s a point, 36 s left; "
        "8 self-iterations: sequence 16 of 64 (25%), 1.3 sequences/s, 36 s left"
    )


def test_many_units_are_counted_in_millions_and_an_unknown_total_has_no_share(lines):
    written, clock = lines
    with bar(25_000_000, "corpus", "byte") as counted:
        clock.seconds += 10
        counted.update(5_000_000)
    with bar(0, "reading", "shard") as counted:
        clock.seconds += 20
        counted.update(3)
    assert written()[0] == "corpus: byte 5.0M of 25.0M (20%), 500,000 bytes/s, 40 s left"
    assert written()[-1] == "reading: shard 3 in 20 s, 6.7 s a shard"


def test_batches_are_counted_in_their_plural(lines):
    written, clock = lines
    with bar(400, "evaluation", "batch") as counted:
        clock.seconds += 10
        counted.update(200)
    assert written()[0] == "evaluation: batch 200 of 400 (50%), 20 batches/s, 10 s left"


def test_a_loop_that_fails_closes_its_bar(lines):
    written, clock = lines
    with pytest.raises(KeyError), bar(4, "outer", "step"):
        raise KeyError
    with bar(2, "next", "step") as counted:
        clock.seconds += 11
        counted.update()
    assert written()[0].startswith("next: ")


def test_of_several_processes_the_first_one_shows(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setenv("RANK", "1")
    with displayed(stream):
        assert type(bar(1, "work", "step")).__name__ == "Bar"
    monkeypatch.setenv("RANK", "0")
    with displayed(stream):
        assert type(bar(1, "work", "step")).__name__ != "Bar"


def read_all(leader: int) -> str:
    """Return what was written to a terminal that is closed, and close its other end."""
    parts = []
    with contextlib.suppress(OSError):  # EIO: there is no more
        while part := os.read(leader, 65536):
            parts.append(part)
    os.close(leader)
    return b"".join(parts).decode()


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (0, 110), (30, 0), (30, 110)])
def test_a_terminal_that_does_not_say_its_size_has_bars_as_well(rows, columns):
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (rows, columns))
    with (
        os.fdopen(follower, "w") as terminal,
        showing(on_terminal(terminal)),
        bar(8, "bounded", "step") as counted,
    ):
        counted.update(8)
    assert "bounded: 100%" in read_all(leader)


def test_a_terminal_has_bars_and_log_lines_stand_above_them(monkeypatch):
    leader, follower = pty.openpty()
    log = logging.getLogger("implicit_models.test_bars")
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        handler = logging.StreamHandler()
        logging.getLogger().addHandler(handler)
        try:
            with displayed(), bar(8, "bounded", "step") as counted:
                counted.update(2)
                counted.note(loss="0.3")
                with bar(3, "validation", "batch") as inner:
                    inner.update(3)
                log.warning("a step was left out")
                counted.update(6)
        finally:
            logging.getLogger().removeHandler(handler)
    text = read_all(leader)
    assert "bounded: 100%" in text and "8/8" in text and "loss=0.3" in text
    assert "validation" in text
    assert text.split("a step was left out")[0].endswith("\r")  # in a line of its own
