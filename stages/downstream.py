"""An entry of ``benchmarks``: one model on the downstream tasks, as lm-eval defines them."""

from typing import Any

from implicit_models.evaluation.parameters import BenchmarkParameters
from implicit_models.parameters import ParameterError, read_section
from stages.common import owner, read_entries
from stages.tracked import numbers, open_run, write_results


def evaluate_downstream(name: str) -> None:
    """Write ``benchmarks.json``, the summary row, and ``harness.json``, the harness's own results.

    They are tracked as metrics of the entry whose model it is; a model from elsewhere has a run of
    its own.
    """
    parameters = read_section(f"benchmarks.{name}", BenchmarkParameters)
    if parameters.tasks not in read_entries("tasks") | read_entries("hub_tasks"):
        raise ParameterError(
            f"benchmarks.{name}.tasks = {parameters.tasks!r} is not allowed; allowed is an entry "
            f"of tasks: {', '.join(read_entries('tasks') | read_entries('hub_tasks')) or 'none'}"
        )
    entry = owner(parameters.model)
    table, tracked = entry if entry else ("benchmarks", name)

    from stages.tasks import evaluate_on_tasks

    stage = f"evaluate_downstream_{name}"
    with open_run(table, tracked, stage, {"benchmark": parameters}) as tracker:
        metrics, report = evaluate_on_tasks(parameters)
        metrics["entry"] = tracked if entry else None
        write_results(name, {"benchmarks.json": metrics, "harness.json": report}, tracker)
        scores = {"row": _named(metrics["row"]), "cost": metrics["cost"]}
        tracker.log_metrics(numbers(scores["row"], "downstream."))
        tracker.log_metrics(numbers(scores["cost"], "downstream.cost."))


def _named(row: dict[str, Any]) -> dict[str, Any]:
    """Give a row under names that MLflow takes; the paper's columns are such."""
    return {column.replace(" ", "_"): value for column, value in row.items()}
