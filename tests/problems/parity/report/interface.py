"""What the report says of parities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from implicit_models.reporting.comparison import Candidate, best_of_kinds, candidates
from implicit_models.reporting.entry_results import EntryResults
from implicit_models.reporting.figures.training import training_curves
from implicit_models.reporting.illustration import illustrate
from implicit_models.reporting.intervals import share_error
from implicit_models.reporting.lead import compared, outcome
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.sections import Section
from implicit_models.reporting.tables.compute import compute_tables
from implicit_models.reporting.tables.cost import cost_tables
from implicit_models.reporting.tables.table import Table, percent


@dataclass(frozen=True, kw_only=True)
class ParityResults(RunResults):
    """What the stages have left of one run."""

    def scores(self) -> dict[str, Any]:
        """Return the scores of the summary, by their names."""
        return {"parity_accuracy": self.accuracy}

    def solutions(self) -> dict[int, float]:
        """Return the accuracy by which a run counts as solved: of a test as long as its training.

        The report has a table of it; there is none where the test is longer.
        """
        length = self.evaluation["length"]
        return {length: self.accuracy} if length <= self.training_length else {}

    @property
    def accuracy(self) -> float:
        """The share of right answers in the test."""
        return self.evaluation["parity_accuracy"]

    @property
    def accuracy_error(self) -> float:
        """The standard error of it: the answers of one sequence are not independent."""
        return share_error(self.accuracy, self.evaluation["num_sequences"])

    @classmethod
    def section(
        cls, runs: "Sequence[ParityResults]", dataset: Any, parameters: Any, styles: Any
    ) -> Section:
        """Return the section of the runs on one entry of data."""
        rows = [[run.name, run.kind, percent(run.accuracy)] for run in runs]
        note = f"Of all answers to test sequences of {dataset.test_length} bits."
        table = Table(title="Parity", note=note, columns=["run", "kind", "right"], rows=rows)
        scored = candidates(runs, lambda run: (run.accuracy, run.accuracy_error))
        best = best_of_kinds(scored, higher_is_better=True)
        told = outcome(best, _shown, higher_is_better=True)
        swept = [run for run in runs if run.test_time_compute is not None]
        return Section(
            lead=[f"Parity: {told}.", f"{compared(runs)}."],
            title=f"Parity of {dataset.test_length} bits",
            description=f"Trained on sequences of up to {dataset.length} bits.",
            illustrations=[illustrate(training_curves, runs, styles, "Training.")],
            tables=[table, *cost_tables(runs), *compute_tables(swept, {"accuracy": "right"})],
        )


def _shown(model: Candidate) -> str:
    return model.written(percent)


RUN = ParityResults
ENTRIES: dict[str, type[EntryResults]] = {}
