"""An entry of ``benchmarks``: one model on the downstream tasks, as lm-eval defines them."""

from implicit_models.evaluation.parameters import BenchmarkParameters
from implicit_models.parameters import ParameterError, read_section
from stages.common import owner, read_entries
from stages.tracked import numbers, open_run, track_data, write_results


def evaluate_downstream(name: str) -> None:
    """Write ``benchmarks.json``, the summary row, and ``harness.json``, the harness's own results.

    They are tracked as metrics of the entry whose model it is, under the names of the paper's
    columns; a model from elsewhere has a run of its own. Of several benchmarks of one model the
    entry's run shows the last, and each has a child run.
    """
    parameters = read_section(f"benchmarks.{name}", BenchmarkParameters)
    if parameters.tasks not in read_entries("tasks") | read_entries("hub_tasks"):
        raise ParameterError(
            f"benchmarks.{name}.tasks = {parameters.tasks!r} is not allowed; allowed is an entry "
            f"of tasks: {', '.join(read_entries('tasks') | read_entries('hub_tasks')) or 'none'}"
        )
    entry = owner(parameters.model)
    table, tracked = entry or ("benchmarks", name)

    from stages.tasks import evaluate_on_tasks

    stage = f"evaluate_downstream_{name}"
    with open_run(table, tracked, stage, {"benchmark": parameters}) as tracker:
        track_data(tracker, parameters.tasks, "evaluation")
        metrics, report, answers = evaluate_on_tasks(f"benchmarks.{name}", parameters)
        metrics["entry"] = tracked if entry else None
        write_results(name, {"benchmarks.json": metrics, "harness.json": report}, tracker)
        errors = {f"{column} stderr": each for column, each in metrics["standard_errors"].items()}
        tracker.log_metrics(numbers(metrics["row"] | errors, "downstream."))
        tracker.log_metrics(numbers(metrics["cost"], "downstream.cost."))
    answers.unlink(missing_ok=True)
