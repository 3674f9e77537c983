"""Signals that end a command, handled during a block."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

#: Ctrl-C, what ends a service or a job, and the end of the terminal.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], None]


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
