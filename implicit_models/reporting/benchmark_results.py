"""What the downstream tasks left on disk, entry by entry of the table ``benchmarks``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicit_models.reporting.files import read_json
from implicit_models.reporting.sources import trained_entry


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


def read_benchmarks(directory: Path, parameters: Mapping[str, Any]) -> list[BenchmarkResults]:
    """Read the results of all entries of ``benchmarks``, in the order of params.yaml.

    Parameters
    ----------
    directory
        One folder per entry, under its name.
    parameters
        The content of params.yaml: its table ``benchmarks``.

    Raises
    ------
    MissingResultError
        Naming the file that is not there, and the stage that writes it.
    """
    return [
        BenchmarkResults(
            name=name,
            model=entry["model"],
            entry=trained_entry(entry["model"]),
            content=read_json(directory / name / "benchmarks.json", "evaluate_downstream"),
        )
        for name, entry in (parameters.get("benchmarks") or {}).items()
    ]
