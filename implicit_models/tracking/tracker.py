"""What a stage tells about its run."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

Level = Literal["both", "stage", "entry", "new entry"]


class Tracker:
    """Receives everything that a stage reports about one run; this one records nothing.

    No method raises because of what lies behind it: a missing server or a full disk is a warning.
    As a context manager it closes itself, and records whether the block failed.
    """

    def log_metrics(
        self, metrics: Mapping[str, float | int], step: int | None = None, level: Level = "both"
    ) -> None:
        """Record one value for each name, at a training step or for the run as a whole.

        They go to the stage's run, the entry's, or both; with ``new entry`` to the entry's and
        only if this stage turns out to be the first one in it.
        """

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Record a file, or a folder with everything in it, as it is at this moment."""

    def log_dataset(self, name: str, digest: str, source: str, context: str) -> None:
        """Record that the run reads a data set.

        Parameters
        ----------
        digest
            Of its content; DVC's, where DVC has recorded it.
        source
            Where it is, in the repository.
        context
            What for: ``"training"``, ``"evaluation"``.
        """
        content = {"name": name, "digest": digest, "source": source, "context": context}
        self._record("dataset", content)

    def log_model(
        self,
        path: Path,
        digest: str,
        *,
        phase: str,
        step: int,
        registered: str | None = None,
    ) -> None:
        """Record a trained model as it is at this moment.

        Parameters
        ----------
        path
            Its folder.
        digest
            Of the folder, as DVC names it.
        phase
            Of the training, which has ended.
        step
            The last one.
        registered
            Name of the registered model of which it becomes a version, with all its files; equal
            weights are one version. Without one only its place is recorded.
        """

    def score_model(
        self,
        name: str,
        digest: str,
        metric: str,
        value: float,
        *,
        higher_is_better: bool,
        dataset_digest: str | None = None,
    ) -> None:
        """Record what a registered model has reached; its best version is chosen by it.

        Parameters
        ----------
        name, digest
            Of the registered model, and of the tested one's folder, as in `log_model`.
        metric, value
            What was measured; a number that is not finite counts as none.
        dataset_digest
            Of the data. Versions compete by the same metric on the same data.
        """
        content = {"name": name, "digest": digest, "metric": metric, "value": float(value)}
        content |= {"higher_is_better": higher_is_better, "dataset_digest": dataset_digest}
        self._record("score", content)

    def close(self) -> None:
        """Declare the run finished. A second call does nothing."""

    def __enter__(self) -> Self:
        """Return the tracker."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the run as finished, failed or killed, and let the error pass."""

    def _record(self, kind: str, content: dict[str, Any]) -> None:
        """Record an event that consists of nothing but values."""


class NullTracker(Tracker):
    """A tracker that records nothing."""
