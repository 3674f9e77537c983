"""The table of how many runs that differ in the seed only solve their task."""

from collections.abc import Mapping, Sequence
from typing import Any

from implicit_models.reporting.results import RunResults
from implicit_models.reporting.tables.table import Table, percent


def success_table(success: Mapping[str, Any], runs: Sequence[RunResults]) -> Table:
    """Return the table of the groups under ``success`` in ``summary.json``."""
    named = {run.name: run for run in runs}
    rows = [
        [
            name,
            named[name].kind,
            f"{group['num_solved']} of {group['num_runs']}",
            percent(group["rate"]),
            str(group["length"]),
            percent(group["threshold"]),
            ", ".join(percent(_accuracy(named[run])) for run in group["runs"]),
        ]
        for name, group in success.items()
    ]
    return Table(
        title="Success rate over all runs",
        note="A group holds every run whose parameters differ in the seed only, and counts all of "
        "them, not the best. A run is solved when it reads at least the threshold over the last 10 "
        "tokens at the longest evaluated length that is not longer than the training length. The "
        "costs are those of the run that the group is named after.",
        columns=["group", "kind", "solved", "rate", "length", "threshold", "accuracy of each run"],
        rows=rows,
    )


def _accuracy(run: RunResults) -> float:
    found = run.solution()
    assert found is not None
    return found[1]
