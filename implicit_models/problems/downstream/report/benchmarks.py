"""What the downstream tasks left on disk, entry by entry of the table ``benchmarks``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from implicit_models.reporting.entry_results import EntryResults
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.sections import Section


@dataclass(frozen=True, kw_only=True)
class BenchmarkResults(EntryResults):
    """A model on the downstream tasks."""

    file = "benchmarks.json"
    written_by = "evaluate_downstream"

    @property
    def tested_on(self) -> tuple[Any, ...]:
        """What was read of which tasks; accuracies compare where it was the same."""
        return self.entry.tasks, *map(self.content.get, ("limit", "max_length"))

    def scores(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the benchmark, under the paper's columns."""
        return {
            "model": self.entry.model,
            "entry": self.trained_entry,
            "kind": self.content["kind"],
            "num_parameters": self.content["num_parameters"],
            **self.content["row"],
            "standard_errors": dict(self.content["standard_errors"]),
        }

    def scores_of_run(self) -> dict[str, Any]:
        """Return the row, for the run that trained the model."""
        return {"downstream": dict(self.content["row"])}

    @classmethod
    def section(cls, results: "Sequence[BenchmarkResults]", runs: Sequence[RunResults]) -> Section:
        """Write the section of the downstream tasks."""
        from implicit_models.problems.downstream.report.figures import (
            CAPTION,
            accuracy_by_self_iterations,
            swept,
        )
        from implicit_models.problems.downstream.report.tables import (
            downstream_lead,
            downstream_table,
        )
        from implicit_models.reporting.figures.style import run_styles
        from implicit_models.reporting.illustration import illustrate

        named = {run.name: run for run in runs}
        styles = {}
        for dataset in dict.fromkeys(run.dataset for run in runs):  # as in their own sections
            styles |= run_styles([run for run in runs if run.dataset == dataset])
        groups = swept(results)
        datasets = [of[0].dataset for of in groups]
        numbers = [datasets[:end].count(name) for end, name in enumerate(datasets, start=1)]
        return Section(
            title="Downstream tasks",
            lead=downstream_lead(results, named),
            description="The harness's own tasks, scored by the log-likelihood of the answers.",
            illustrations=[
                illustrate(accuracy_by_self_iterations, of, styles, CAPTION, number)
                for number, of in zip(numbers, groups, strict=True)
            ],
            tables=[downstream_table(results, named)],
        )
