"""Being asked to stop: what a scheduler does before it takes a node away."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Stopped(SystemExit):
    """The training has been asked to stop, and has kept a checkpoint."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__(128 + number)
        self.step = step


class StopRequest:
    """Remembers a SIGTERM or SIGHUP for as long as its context lasts, in place of dying of it.

    Only a process's main thread hears of signals; in any other nothing is changed. A SIGHUP that
    is ignored stays ignored.

    Attributes
    ----------
    number
        Of the first that has come; 0 where none has.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    @property
    def is_made(self) -> bool:
        """Whether one has come."""
        return self.number != 0

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
