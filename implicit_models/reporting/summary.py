"""The summary of all runs: the numbers, and how many of the runs that differ in seed succeed."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.results import RunResults


def summarise(
    runs: Iterable[RunResults],
    parameters: ReportParameters,
    mlflow_run_ids: Mapping[str, str | None],
) -> dict[str, Any]:
    """Give the content of ``summary.json``.

    Under ``runs`` is each run by name; under ``success`` each group of runs whose parameters
    differ in nothing but the seed, under its first run's name. Every run of a group counts.

    Parameters
    ----------
    mlflow_run_ids
        Identifier of each run's parent run in the tracking store, where there is one.
    """
    runs = list(runs)
    return {
        "runs": {run.name: _summarise_run(run, mlflow_run_ids.get(run.name)) for run in runs},
        "success": {
            name: _success(group, parameters.success_threshold)
            for name, group in group_by_seed(runs).items()
        },
    }


def group_by_seed(runs: Iterable[RunResults]) -> dict[str, list[RunResults]]:
    """Group the runs whose parameters differ in nothing but the seed, by their first run's name."""
    groups: dict[str, list[RunResults]] = {}
    for run in runs:
        entry = {name: value for name, value in run.parameters.items() if name != "seed"}
        groups.setdefault(json.dumps(entry, sort_keys=True), []).append(run)
    return {group[0].name: group for group in groups.values()}


def _summarise_run(run: RunResults, mlflow_run_id: str | None) -> dict[str, Any]:
    evaluation = run.evaluation
    return {
        "kind": run.kind,
        "num_parameters": evaluation["num_parameters"],
        "accuracy": dict(evaluation["accuracy"]),
        "accuracy_last_10": dict(evaluation["accuracy_last_10"]),
        "self_iterations": dict(evaluation["self_iterations"]),
        "evaluations_per_token": dict(evaluation["evaluations_per_token"]),
        "mode_token_match": evaluation["mode_token_match"],
        "train_seconds": run.train_seconds,
        "tokens_per_second": run.tokens_per_second,
        "mlflow_run_id": mlflow_run_id,
    }


def _success(group: list[RunResults], threshold: float) -> dict[str, Any]:
    length = group[0].solved_length
    solved = [r for r in group if r.evaluation["accuracy_last_10"][str(length)] >= threshold]
    return {
        "num_runs": len(group),
        "num_solved": len(solved),
        "rate": len(solved) / len(group),
        "threshold": threshold,
        "length": length,
        "runs": [run.name for run in group],
    }
