from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from implicit_models.reporting.entry_results import EntryResults
from implicit_models.reporting.figures.training import training_curves
from implicit_models.reporting.illustration import illustrate
from implicit_models.reporting.lead import compared
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.sections import Section
from implicit_models.reporting.tables.cost import cost_tables
from implicit_models.reporting.tables.table import Table, percent


@dataclass(frozen=True, kw_only=True)
class ParityResults(RunResults):
    def scores(self) -> dict[str, Any]:
        return {"parity_accuracy": self.evaluation["parity_accuracy"]}

    def solutions(self) -> dict[int, float]:
        return {self.training_length: self.evaluation["parity_accuracy"]}

    @classmethod
    def section(
        cls, runs: "Sequence[ParityResults]", dataset: Any, parameters: Any, styles: Any
    ) -> Section:
        rows = [[run.name, run.kind, percent(run.scores()["parity_accuracy"])] for run in runs]
        table = Table(
            title="Parity", note="All tokens.", columns=["run", "kind", "right"], rows=rows
        )
        return Section(
            lead=[f"Parity: {compared(runs)}."],
            title=f"Parity of {dataset.length} bits",
            description="Of the tests.",
            illustrations=[illustrate(training_curves, runs, styles, "Training.")],
            tables=[table, *cost_tables(runs)],
        )


RUN = ParityResults
ENTRIES: dict[str, type[EntryResults]] = {}
