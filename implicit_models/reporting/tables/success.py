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
            " to ".join(percent(end, 0) for end in group["interval"]),
            str(group["length"]),
            percent(group["threshold"]),
            ", ".join(percent(_accuracy(named[run])) for run in group["runs"]),
        ]
        for name, group in success.items()
    ]
    return Table(
        title="Success rate over all runs",
        note="A group holds every run whose parameters differ in the seed only, and counts all of "
        "them, not the best. The interval is that of Clopper and Pearson, 95 %, of the share that "
        "further seeds would solve. A run is solved when it reads at least the threshold over the "
        "last 10 tokens at the longest evaluated length that is not longer than the training "
        "length.",
        columns=[
            *("group", "kind", "solved", "rate", "95 % interval", "length", "threshold"),
            "accuracy of each run",
        ],
        rows=rows,
    )


def _accuracy(run: RunResults) -> float:
    found = run.solution()
    assert found is not None
    return found[1]
