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
            length,
            f"{rate['num_solved']} of {group['num_runs']}",
            percent(rate["rate"]),
            " to ".join(percent(end, 0) for end in rate["interval"]),
            percent(group["threshold"]),
            ", ".join(percent(named[run].solutions()[int(length)]) for run in group["runs"]),
        ]
        for name, group in success.items()
        for length, rate in group["by_length"].items()
    ]
    over = dict.fromkeys(
        named[run].solved_over for each in success.values() for run in each["runs"]
    )
    return Table(
        title="Success rate over all runs",
        note="A group holds every run whose parameters differ in the seed only, and counts all of "
        "them, not the best. The interval is Wilson's, 95 %, of the share that "
        "further seeds would solve. A run is solved when it reads at least the threshold over "
        f"{' or '.join(over)}. A group's first length is the longest evaluated one that is not "
        "longer than the training length; all others are longer than what was trained on.",
        columns=[
            *("group", "kind", "length", "solved", "rate", "95 % interval", "threshold"),
            "accuracy of each run",
        ],
        rows=rows,
        num_text_columns=2,
    )
