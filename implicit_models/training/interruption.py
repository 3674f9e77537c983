"""Being asked to stop: what a scheduler does before it takes a node away."""

import signal
from types import FrameType, TracebackType


class Stopped(SystemExit):
    """The training has been asked to stop, and has kept a checkpoint."""

    def __init__(self, step: int) -> None:
        super().__init__(128 + signal.SIGTERM)
        self.step = step


class StopRequest:
    """Remembers a SIGTERM for as long as its context lasts, in place of dying of it.

    Attributes
    ----------
    is_made
        Whether one has come.
    """

    def __init__(self) -> None:
        self.is_made = False

    def __enter__(self) -> "StopRequest":
        self._before = signal.signal(signal.SIGTERM, self._remember)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.is_made = True
