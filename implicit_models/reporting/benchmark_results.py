"""What the downstream tasks left on disk, entry by entry of the table ``benchmarks``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicit_models.reporting.entries import EvaluatedEntry, trained_entry
from implicit_models.reporting.files import read_json


@dataclass(frozen=True, kw_only=True)
class BenchmarkResults:
    """A model on the downstream tasks.

    Attributes
    ----------
    model
        Its folder.
    entry
        The entry of params.yaml that trained it; None for a model from elsewhere.
    content
        The content of ``benchmarks.json``.
    """

    name: str
    model: str
    entry: str | None
    content: Mapping[str, Any]

    @property
    def label(self) -> str:
        """What the model is called in a table."""
        return self.entry or self.model


def read_benchmarks(
    directory: Path, entries: Mapping[str, EvaluatedEntry]
) -> list[BenchmarkResults]:
    """Read the results of all entries of ``benchmarks``, in the order of params.yaml.

    Parameters
    ----------
    directory
        One folder per entry, under its name.
    entries
        Those of ``benchmarks``.

    Raises
    ------
    MissingResultError
        Naming the file that is not there, and the stage that writes it.
    """
    return [
        BenchmarkResults(
            name=name,
            model=entry.model,
            entry=trained_entry(entry.model),
            content=read_json(directory / name / "benchmarks.json", "evaluate_downstream"),
        )
        for name, entry in entries.items()
    ]
