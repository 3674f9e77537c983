"""The summary of all runs: the numbers, and how many of the runs that differ in seed succeed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from implicit_models.parameters.names import TESTED_APART
from implicit_models.reporting.entry_results import EntryResults
from implicit_models.reporting.intervals import wilson
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.results import RunResults

Run = TypeVar("Run", bound=RunResults)


def summarise(
    runs: Iterable[RunResults],
    parameters: ReportParameters,
    mlflow_run_ids: Mapping[str, str | None],
    tested_apart: Mapping[str, Sequence[EntryResults]] | None = None,
) -> dict[str, Any]:
    """Return the content of ``summary.json``.

    Under ``runs`` is each run by name; under ``success`` each group of runs whose parameters differ
    in nothing but the seed, under its first run's name, where their problem knows success: every
    run of a group counts. Under ``benchmarks`` are the downstream scores, by the names of the
    paper's columns, and under ``downstream`` of a run are those of its own benchmarks, by their
    names.

    Parameters
    ----------
    mlflow_run_ids
        Identifier of each run's parent run in the tracking store, where there is one.
    tested_apart
        What `EntryResults.read` gives, by table.
    """
    runs, tested_apart = list(runs), tested_apart or {}
    summary: dict[str, Any] = {
        "runs": {run.name: _summarise_run(run, mlflow_run_ids.get(run.name)) for run in runs},
        "success": {
            name: found
            for name, group in group_by_seed(runs).items()
            if (found := _success(group, parameters.success_threshold))
        },
    }
    for table in TESTED_APART:
        found = tested_apart.get(table, ())
        summary[table] = {
            each.name: {**each.scores(), "mlflow_run_id": mlflow_run_ids.get(each.name)}
            for each in found
        }
        for each in found:
            if each.trained_entry in summary["runs"]:
                for key, scores in each.scores_of_run().items():
                    run = summary["runs"][each.trained_entry]
                    run.setdefault(key, {})[each.name] = scores
    return summary


def group_by_seed(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group the runs whose parameters differ in nothing but the seed, by their first run's name."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return {group[0].name: group for group in groups.values()}


def _summarise_run(run: RunResults, mlflow_run_id: str | None) -> dict[str, Any]:
    return {
        "kind": run.kind,
        "data": run.problem,
        "num_parameters": run.evaluation["num_parameters"],
        **run.scores(),
        "training_flops": run.training_flops,
        "num_training_tokens": run.num_training_tokens,
        "train_seconds": run.train_seconds,
        "tokens_per_second": run.tokens_per_second,
        "peak_memory_bytes": run.peak_memory_bytes,
        "energy_joules": run.energy_joules,
        "evaluation_flops_per_token": (run.evaluation.get("cost") or {}).get("flops_per_token"),
        "mlflow_run_id": mlflow_run_id,
    }


def _success(group: list[RunResults], threshold: float) -> dict[str, Any] | None:
    solutions = [run.solutions() for run in group]
    lengths = [each for each in solutions[0] if all(each in found for found in solutions)]
    if not lengths:
        return None
    rates = {
        str(length): _rate([found[length] >= threshold for found in solutions])
        for length in lengths
    }
    return {
        "num_runs": len(group),
        **rates[str(lengths[0])],
        "threshold": threshold,
        "length": lengths[0],
        "by_length": rates,
        "runs": [run.name for run in group],
    }


def _rate(solved: Sequence[bool]) -> dict[str, Any]:
    interval = list(wilson(sum(solved), len(solved)))
    return {"num_solved": sum(solved), "rate": sum(solved) / len(solved), "interval": interval}
