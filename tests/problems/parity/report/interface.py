"""What the report says of parities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from implicit_models.reporting.comparison import Candidate, best_of_kinds, candidates
from implicit_models.reporting.entry_results import EntryResults
from implicit_models.reporting.figures.training import training_curves
from implicit_models.reporting.illustration import illustrate
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
        return {"parity_accuracy": self.evaluation["parity_accuracy"]}

    def solutions(self) -> dict[int, float]:
        """Return the share of right answers, by the length that it is of."""
        return {self.training_length: self.evaluation["parity_accuracy"]}

    @classmethod
    def section(
        cls, runs: "Sequence[ParityResults]", dataset: Any, parameters: Any, styles: Any
    ) -> Section:
        """Return the section of the runs on one entry of data."""
        rows = [[run.name, run.kind, percent(run.scores()["parity_accuracy"])] for run in runs]
        table = Table(
            title="Parity", note="All tokens.", columns=["run", "kind", "right"], rows=rows
        )
        scored = candidates(runs, lambda run: (run.scores()["parity_accuracy"], 0.0))
        best = best_of_kinds(scored, higher_is_better=True)
        told = outcome(best, _shown, higher_is_better=True)
        swept = [run for run in runs if run.test_time_compute is not None]
        return Section(
            lead=[f"Parity: {told}.", f"{compared(runs)}."],
            title=f"Parity of {dataset.length} bits",
            description="Of the tests.",
            illustrations=[illustrate(training_curves, runs, styles, "Training.")],
            tables=[table, *cost_tables(runs), *compute_tables(swept, {"accuracy": "right"})],
        )


def _shown(model: Candidate) -> str:
    return model.written(percent)


RUN = ParityResults
ENTRIES: dict[str, type[EntryResults]] = {}
