"""What a model left that was tested apart: an entry of ``benchmarks`` or ``readings``."""

import abc
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from implicit_models.reporting.entries import EvaluatedEntry, trained_entry
from implicit_models.reporting.files import noting_missing, read_json

if TYPE_CHECKING:
    from implicit_models.reporting.results import RunResults
    from implicit_models.reporting.sections import Section


@dataclass(frozen=True, kw_only=True)
class EntryResults(abc.ABC):
    """A model on data that it was not trained on.

    Attributes
    ----------
    entry
        Of params.yaml.
    content
        The content of the class's ``file``, which the stage ``written_by`` writes.
    """

    file: ClassVar[str]
    written_by: ClassVar[str]

    name: str
    entry: Any
    content: Mapping[str, Any]

    @classmethod
    def read(
        cls,
        directory: Path,
        entries: Mapping[str, EvaluatedEntry],
        missing: MutableMapping[str, str] | None = None,
    ) -> "list[EntryResults]":
        """Read the results of all entries of a table, in the order of params.yaml.

        Parameters
        ----------
        directory
            One folder per entry, under its name.
        missing
            As of `implicit_models.reporting.results.read_results`.

        Raises
        ------
        MissingResultError
            Naming the file that is not there, and the stage that writes it.
        """
        found = []
        for name, entry in entries.items():
            with noting_missing(name, missing):
                content = read_json(directory / name / cls.file, cls.written_by)
                found.append(cls(name=name, entry=entry, content=content))
        return found

    @property
    def trained_entry(self) -> str | None:
        """The entry of params.yaml that trained the model; None for one from elsewhere."""
        return trained_entry(self.entry.model)

    @property
    def label(self) -> str:
        """What the model is called in a table."""
        return self.trained_entry or self.entry.model

    @property
    def dataset(self) -> str:
        """Name of the data."""
        return self.entry.data

    @property
    def max_steps(self) -> int:
        """Evaluations that its search may make, the output's not counted; 0 without a search."""
        return self._search.get("max_steps") or 0

    @property
    def search_but_steps(self) -> dict[str, Any]:
        """What else is known of its search: the same where tests differ in ``max_steps`` alone.

        A patience that the entry leaves out is at most ``max_steps``, and is left out here.
        """
        follows = {"max_steps"} if "patience" in self.entry.search else {"max_steps", "patience"}
        return {key: each for key, each in self._search.items() if key not in follows}

    @property
    def _search(self) -> Mapping[str, Any]:
        """Its keys as they were recorded, nothing for an explicit model; or as they were given."""
        return self.content.get("search", self.entry.search) or {}

    @classmethod
    @abc.abstractmethod
    def section(cls, results: Sequence[Any], runs: "Sequence[RunResults]") -> "Section":
        """Write the section of the report about results that are all of this class."""

    @abc.abstractmethod
    def scores(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of them."""

    def scores_of_run(self) -> dict[str, Any]:
        """Return what the summary of the run that trained the model says of it, by a name."""
        return {}
