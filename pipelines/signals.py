"""Signals that end a command, handled during a block."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

#: Ctrl-C, what ends a service or a job, and the end of the terminal.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], None]
_ECHO_SECONDS = 1.0


class Insistence:
    """Tells a second wish to end from what one wish may send several times.

    A terminal that closes sends several SIGHUPs, and who ends a session SIGTERM after them: neither
    is a second wish. Who ends a process group sends SIGTERM to a command and to what it has
    started, to which the command hands it on as well.
    """

    _since: float | None = None

    def repeats(self, number: int) -> bool:
        """Note a signal that has come; return whether it asks for the end once more."""
        if number == signal.SIGHUP:
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
            return False
        return number == signal.SIGINT or now - self._since >= _ECHO_SECONDS  # none hands SIGINT on


@contextlib.contextmanager
def handled_signals(handle: Handler, numbers: Sequence[int] = ENDING) -> Iterator[None]:
    """Call a function at each of some signals during a block.

    Nothing happens in another thread than the main one, which alone may listen: whoever owns that
    stops us otherwise. A SIGHUP that is ignored, as under ``nohup``, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, handle)
        for number in numbers
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
