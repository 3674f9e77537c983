"""How far a loop has come, for whoever waits for it: a value that loops tell, silent by default.

A loop asks for a `bar` and tells it what it has done. What becomes of that is up to whoever runs
the loop, by `showing`; a loop knows nothing of it, and nothing that is computed depends on it.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self


class Bar:
    """Takes how far a loop has come; this one shows nothing.

    As a context manager it closes itself.
    """

    def update(self, amount: int = 1) -> None:
        """Take that so much more is done; called as often as the loop likes."""

    def note(self, **values: str) -> None:
        """Take what is to stand beside the count, such as the loss, in place of earlier notes."""

    def close(self) -> None:
        """Take that the loop has ended."""

    def __enter__(self) -> Self:
        """Return the bar."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it, and let the error pass."""
        self.close()


Open = Callable[[int, str, str, int], Bar]
"""Opens a bar: what all is, what is done, the unit, and how much was done before."""


def _silent(total: int, description: str, unit: str, start: int) -> Bar:
    return Bar()


_OPEN: contextvars.ContextVar[Open] = contextvars.ContextVar("bars", default=_silent)


def bar(total: int, description: str, unit: str, *, start: int = 0) -> Bar:
    """Open the bar of a loop.

    Parameters
    ----------
    total
        How much there is to do, in units; 0 where nobody knows.
    description
        What is done, in a word or three.
    unit
        What is counted, in the singular.
    start
        How much of it was done before.
    """
    return _OPEN.get()(total, description, unit, start)


@contextlib.contextmanager
def showing(opens: Open) -> Iterator[None]:
    """Show the bars of a block as a function opens them."""
    token = _OPEN.set(opens)
    try:
        yield
    finally:
        _OPEN.reset(token)
