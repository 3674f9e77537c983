"""Measure an implicit model against the self-iterations and the tolerance it is allowed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implicit_models.evaluation.parameters import SweepParameters
from implicit_models.parameters import read_section
from implicit_models.tracking.tracker import Tracker
from stages.common import read_dataset, run_stage, run_table
from stages.evaluation_stage import check_test_splits
from stages.tracked import numbers, open_run, write_results


def main(name: str) -> None:
    """Write the entry's ``test_time_compute.json`` and ``test_time_compute.csv``."""
    table = run_table(name)
    dataset, dataset_parameters = read_dataset(table, name)
    parameters = read_section("sweep", SweepParameters)
    check_test_splits(
        "sweep", [parameters.length], parameters.num_sequences, dataset, dataset_parameters
    )

    from implicit_models.data.word_problems import open_splits
    from implicit_models.evaluation.test_time_compute import sweep_test_time_compute
    from implicit_models.language_models.placement import default_device
    from implicit_models.language_models.serialisation import load_model

    split = open_splits(Path("data", dataset)).split(f"test_L{parameters.length}")
    model = load_model(Path("models", name, "final"), default_device())
    tracked = {"sweep": parameters}
    with open_run(table, name, "sweep_test_time_compute", tracked) as tracker:
        result = sweep_test_time_compute(model, split, parameters)
        metrics = result.metrics()
        files = {"test_time_compute.json": metrics, "test_time_compute.csv": result.rows()}
        write_results(name, files, tracker)
        track(metrics, tracker)


def track(metrics: Mapping[str, Any], tracker: Tracker) -> None:
    """Log both sweeps: self-iterations are the steps of a curve, tolerances are in the names."""
    for point in metrics["self_iterations"]:
        values = {name: value for name, value in point.items() if name != "self_iterations"}
        tracker.log_metrics(numbers(values, "sweep.self_iterations."), point["self_iterations"])
    for point in metrics["tolerance"]:
        values = {name: value for name, value in point.items() if name != "tolerance"}
        tracker.log_metrics(numbers(values, f"sweep.tolerance_{point['tolerance']}."))


if __name__ == "__main__":
    run_stage(main, "runs", "upcycled")
