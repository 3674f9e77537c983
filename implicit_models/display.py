"""Where bars are shown: as such on a terminal, elsewhere as a line every ten seconds.

Of the processes of torchrun the first one shows them. A command shows bars, the library none.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from implicit_models.bars import Bar, Open, showing

LINE_SECONDS = 10.0
_BAR_SECONDS = 0.2
_SCALED = 1_000_000  # units, from which on counts are shown in millions


def is_first_process() -> bool:
    """Return whether this is the one of torchrun's processes that speaks for all, or has none."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def displayed(stream: TextIO | None = None) -> Iterator[None]:
    """Show the bars of a block on a stream, standard error unless another is given.

    Log lines of the block stand above the bars of a terminal.
    """
    stream = sys.stderr if stream is None else stream
    if stream is None or not is_first_process():
        yield
    elif stream.isatty():
        with logging_redirect_tqdm(), showing(on_terminal(stream)):
            yield
    else:
        with showing(Lines(stream)):
            yield


def on_terminal(stream: TextIO) -> Open:
    """Return what opens bars on a terminal; those inside another one go when they have ended."""
    num_open = 0
    # A terminal whose size nobody knows, as inside of some containers, says 0, of either.
    known = os.get_terminal_size(stream.fileno())
    size: dict[str, Any] = {"ncols": known.columns or 80, "nrows": known.lines or 24}
    if all(known):
        size = {"dynamic_ncols": True}

    def opens(total: int, description: str, unit: str, start: int) -> Bar:
        nonlocal num_open
        num_open += 1

        def closed() -> None:
            nonlocal num_open
            num_open -= 1

        shown = tqdm(
            total=total or None,
            initial=start,
            desc=description,
            unit=unit,
            unit_scale=total >= _SCALED,
            file=stream,
            **size,
            mininterval=_BAR_SECONDS,
            leave=num_open == 1,
        )
        return _TerminalBar(shown, closed)

    return opens


class _TerminalBar(Bar):
    def __init__(self, shown: tqdm, closed: Callable[[], None]) -> None:
        self._shown = shown
        self._closed = closed
        self._is_begun = False

    def update(self, amount: int = 1) -> None:
        shown, is_begun = self._shown, self._is_begun
        self._is_begun = True
        if is_begun or shown.n + amount >= (shown.total or 0):
            shown.update(amount)
            return
        # The first step also loads, compiles and tunes: the forecast begins after it.
        shown.n += amount
        shown.initial = shown.last_print_n = shown.n
        shown.unpause()
        shown.refresh()

    def note(self, **values: str) -> None:
        self._shown.set_postfix(values, refresh=False)

    def close(self) -> None:
        if not self._shown.disable:
            self._shown.close()
            self._closed()


class Lines:
    """Opens bars of which a line is written every ten seconds, all that are open in one line.

    A loop is told of no earlier than ten seconds after the last line, and at its end if it took as
    long: one that is shorter has no line of its own end.

    Parameters
    ----------
    stream
        Where lines are written.
    clock
        Returns seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._open: list[_LineBar] = []
        self._due = clock() + LINE_SECONDS

    def __call__(self, total: int, description: str, unit: str, start: int) -> Bar:
        """Open a bar."""
        opened = _LineBar(self, total, description, unit, start)
        self._open.append(opened)
        return opened

    def now(self) -> float:
        """Return the time."""
        return self._clock()

    def look(self) -> None:
        """Write a line if one is due."""
        now = self._clock()
        if now >= self._due:
            self._write("; ".join(each.state(now) for each in self._open), now)

    def close(self, closed: "_LineBar") -> None:
        """Take a bar away, with a last line where it has taken long."""
        if closed not in self._open:
            return
        self._open.remove(closed)
        now = self._clock()
        if now - closed.began >= LINE_SECONDS:
            self._write(closed.end(now), now)

    def _write(self, line: str, now: float) -> None:
        self._due = now + LINE_SECONDS
        with contextlib.suppress(OSError, ValueError):  # nobody may be there to read it
            print(line, file=self._stream, flush=True)


class _LineBar(Bar):
    def __init__(self, lines: Lines, total: int, description: str, unit: str, start: int) -> None:
        self._lines = lines
        self._total, self._description, self._unit = total, description, unit
        self._done = self._start = start
        self._notes: dict[str, str] = {}
        self.began = lines.now()
        self._last = self.began, start  # when a line was written, and what was done then
        self._first: tuple[float, int] | None = None  # the same of the first step
        self._rate = 0.0

    def update(self, amount: int = 1) -> None:
        self._done += amount
        self._first = self._first or (self._lines.now(), self._done)
        self._lines.look()

    def note(self, **values: str) -> None:
        self._notes = values

    def close(self) -> None:
        self._lines.close(self)

    def state(self, now: float) -> str:
        """Return how far it is, with the rate since the last line and the time that is left.

        The first step also loads, compiles and tunes: the rate is of those after it, if there are.
        """
        since, before = self._last
        if before == self._start and self._first is not None and self._done > self._first[1]:
            since, before = self._first
        if self._done > before and now > since:
            self._rate = (self._done - before) / (now - since)
            self._last = now, self._done
        words = [f"{self._description}: {self._count()}", *self._noted()]
        if self._rate:
            words.append(_rate(self._rate, self._unit))
            if self._total:
                words.append(f"{_duration((self._total - self._done) / self._rate)} left")
        return ", ".join(words)

    def end(self, now: float) -> str:
        """Return what was done, and how long it took."""
        seconds = now - self.began
        rate = _rate((self._done - self._start) / seconds, self._unit) if seconds > 0 else ""
        words = [f"{self._description}: {self._count()} in {_duration(seconds)}", *self._noted()]
        return ", ".join([*words, *filter(None, [rate])])

    def _count(self) -> str:
        done = _number(self._done, self._total)
        if not self._total:
            return f"{self._unit} {done}"
        share = min(self._done / self._total, 1.0)
        return f"{self._unit} {done} of {_number(self._total, self._total)} ({share:.0%})"

    def _noted(self) -> list[str]:
        return [f"{name} {value}" for name, value in self._notes.items()]


def _number(count: int, total: int) -> str:
    return f"{count / 1e6:,.1f}M" if total >= _SCALED else f"{count:,}"


def _rate(rate: float, unit: str) -> str:
    several = f"{unit}es" if unit.endswith(("ch", "sh", "s", "x")) else f"{unit}s"
    if rate >= _SCALED:
        return f"{rate / 1e6:,.1f}M {several}/s"
    if rate >= 1:
        return f"{rate:,.0f} {several}/s" if rate >= 10 else f"{rate:.1f} {several}/s"
    return f"{1 / rate:.1f} s a {unit}" if rate else ""


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
