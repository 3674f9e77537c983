"""What models made of corpora that they were not trained on, entry by entry of ``readings``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from implicit_models.reporting.entries import EvaluatedEntry, trained_entry
from implicit_models.reporting.files import read_json


class ReadEntry(EvaluatedEntry, Protocol):
    """An entry of ``readings``."""

    @property
    def corpus(self) -> str:
        """Name of the corpus."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReadingResults:
    """A model on a corpus.

    Attributes
    ----------
    model
        The entry of params.yaml that trained it, or its folder.
    corpus
        Name of the corpus.
    content
        The content of ``evaluation.json``.
    """

    name: str
    model: str
    corpus: str
    content: Mapping[str, Any]


def read_readings(directory: Path, entries: Mapping[str, ReadEntry]) -> list[ReadingResults]:
    """Read the results of all entries of ``readings``; see `read_benchmarks`."""
    return [
        ReadingResults(
            name=name,
            model=trained_entry(entry.model) or entry.model,
            corpus=entry.corpus,
            content=read_json(directory / name / "evaluation.json", "evaluate_reading"),
        )
        for name, entry in entries.items()
    ]
