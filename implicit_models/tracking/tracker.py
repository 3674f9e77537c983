"""What a stage may tell about its run, and the tracker that listens to nothing."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, runtime_checkable

Level = Literal["both", "stage", "entry", "new entry"]


@runtime_checkable
class Tracker(Protocol):
    """Receives everything a stage reports about one run.

    No method raises because of what lies behind it: a missing server or a full disk is a warning.
    As a context manager it closes itself, and records whether the block failed.
    """

    def log_metrics(
        self,
        metrics: Mapping[str, float | int],
        step: int | None = None,
        level: Level = "both",
    ) -> None:
        """Record one value for each name, at a training step or for the run as a whole.

        They go to the stage's run, the entry's, or both; with ``new entry`` to the entry's and
        only if this stage turns out to be the first one in it.
        """

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Record a file, or a folder with everything in it, as it is at this moment."""

    def close(self) -> None:
        """Declare the run finished. A second call does nothing."""

    def __enter__(self) -> "Tracker":
        """Return the tracker."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the run as finished, failed or killed, and let the error pass."""


class NullTracker:
    """A tracker that records nothing."""

    def log_metrics(
        self,
        metrics: Mapping[str, float | int],
        step: int | None = None,
        level: Level = "both",
    ) -> None:
        """Do nothing."""

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> "NullTracker":
        """Return the tracker."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let an error pass."""
