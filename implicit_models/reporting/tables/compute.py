"""The tables of test-time compute where scores are accuracies."""

from collections.abc import Mapping, Sequence
from typing import Any

from implicit_models.reporting.results import RunResults
from implicit_models.reporting.tables.table import (
    RESIDUALS,
    SELF_ITERATIONS,
    WORK,
    Table,
    number,
    percent,
    said_of_each,
)


def compute_tables(
    runs: Sequence[RunResults],
    accuracies: Mapping[str, str],
    read: str = "Sequences of {length} tokens.",
) -> list[Table]:
    """Return tables of accuracy and cost against the computation allowed at test time.

    Parameters
    ----------
    accuracies
        The title of each column of accuracies, by its name in the runs' sweeps.
    read
        What a run's sweep has read, its ``length`` to be filled in.
    """
    by_iterations, by_tolerance = [], []
    for run in runs:
        sweep = run.test_time_compute or {}
        for point in sweep.get("self_iterations", ()):
            row = [run.name, number(point["self_iterations"]), *_cells(point, accuracies)]
            by_iterations.append(row)
        for point in sweep.get("tolerance", ()):
            steps, work = point["self_iterations"], point["evaluations_per_token"]
            used = [number(steps[name]) for name in ("mean", "p50", "p95")]
            used.append(number(work["mean"]))
            row = [run.name, number(point["tolerance"]), *_cells(point, accuracies)]
            by_tolerance.append([*row, *used])
    shared = [*accuracies.values(), "residual, mean", "time (s)"]
    lengths = {
        run.name: read.format(length=run.test_time_compute["length"])
        for run in runs
        if run.test_time_compute
    }
    note = f"{' '.join(said_of_each(lengths))} {SELF_ITERATIONS}"
    return [
        Table(
            title="Accuracy against the allowed self-iterations",
            note=f"{note}; all of them are used on whole sequences, whatever the residual, which "
            "is that of a sequence's worst token.",
            columns=["run", "self-iterations", *shared],
            rows=by_iterations,
            num_text_columns=1,
        ),
        Table(
            title="Accuracy against the tolerance",
            note=f"{note}. {WORK}. {RESIDUALS}.",
            columns=[
                *("run", "tolerance", *shared),
                *("self-iterations, mean", "p50", "p95", "evaluations per token, mean"),
            ],
            rows=by_tolerance,
            num_text_columns=1,
        ),
    ]


def _cells(point: Mapping[str, Any], accuracies: Mapping[str, str]) -> list[str]:
    return [
        *(percent(point[name]) for name in accuracies),
        number(point["relative_residual"]),
        number(point["seconds"]),
    ]
