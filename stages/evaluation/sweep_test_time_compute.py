"""Measure an implicit model against the self-iterations and the tolerance it is allowed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implicit_models.problems.problem import evaluation_of, parameters_of
from implicit_models.tracking.tracker import Tracker
from stages.common import naming, read_dataset, read_tests, run_stage, run_table, tests_key
from stages.tracked import numbers, open_test, track_data, write_results


def main(name: str) -> None:
    """Write the entry's ``test_time_compute.json`` and ``test_time_compute.csv``."""
    table = run_table(name)
    data = read_dataset(table, name)
    parameters = read_tests("sweep", table, name, data)
    where = tests_key("sweep", table, name, data)
    parameters_of(data.kind).check_sweep(data.key, data.parameters, parameters, where)
    evaluation = evaluation_of(data.kind)
    model = Path("models", name, "final")
    with open_test(
        table,
        name,
        "sweep_test_time_compute",
        {"sweep": parameters},
        model=model,
        data=data.folder,
        tested_as=name,
        role="sweep",
    ) as tracker:
        track_data(tracker, data.name, "evaluation")
        with naming(where):
            swept = evaluation.sweep(model, data.folder, parameters)
        metrics = swept.result.metrics()
        rows = [row | {"score": row[swept.score]} for row in swept.result.rows()]
        files = {"test_time_compute.json": metrics, "test_time_compute.csv": rows}
        write_results(name, "sweep_test_time_compute", files, tracker)
        track(metrics, tracker)
    swept.discard()


def track(metrics: Mapping[str, Any], tracker: Tracker) -> None:
    """Log both sweeps: self-iterations are the steps of a curve, tolerances are in the names."""
    for point in metrics["self_iterations"]:
        values = {name: value for name, value in point.items() if name != "self_iterations"}
        named = numbers(values, "sweep.self_iterations.")
        tracker.log_metrics(named, point["self_iterations"], "stage")
    for point in metrics["tolerance"]:
        mode = f".{point['mode']}" if "mode" in point else ""
        values = {name: value for name, value in point.items() if name not in ("tolerance", "mode")}
        prefix = f"sweep.tolerance_{point['tolerance']}{mode}."
        tracker.log_metrics(numbers(values, prefix), level="stage")


if __name__ == "__main__":
    run_stage(main, "runs", "upcycled")
