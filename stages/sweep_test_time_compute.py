"""Measure an implicit model against the self-iterations and the tolerance it is allowed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implicit_models.data.parameters import CorpusParameters
from implicit_models.tracking.tracker import Tracker
from stages.common import read_dataset, run_stage, run_table
from stages.evaluation_stage import check_test_splits, read_part
from stages.tracked import numbers, open_run, track_data, write_results


def main(name: str) -> None:
    """Write the entry's ``test_time_compute.json`` and ``test_time_compute.csv``."""
    table = run_table(name)
    dataset, data = read_dataset(table, name)
    parameters = read_part("sweep", data)
    if not isinstance(data, CorpusParameters):
        count = parameters.num_sequences
        check_test_splits("sweep.word_problem", [parameters.length], count, dataset, data)

    from stages.own_data import sweep_corpus, sweep_word_problem

    folders = Path("models", name, "final"), Path("data", dataset)
    measure = sweep_corpus if isinstance(data, CorpusParameters) else sweep_word_problem
    with open_run(table, name, "sweep_test_time_compute", {"sweep": parameters}) as tracker:
        track_data(tracker, dataset, "evaluation")
        result, store = measure(*folders, parameters)
        metrics = result.metrics()
        score = "perplexity" if isinstance(data, CorpusParameters) else "accuracy"
        rows = [row | {"score": row[score]} for row in result.rows()]
        files = {"test_time_compute.json": metrics, "test_time_compute.csv": rows}
        write_results(name, files, tracker)
        track(metrics, tracker)
    if store is not None:
        store.discard()


def track(metrics: Mapping[str, Any], tracker: Tracker) -> None:
    """Log both sweeps: self-iterations are the steps of a curve, tolerances are in the names."""
    for point in metrics["self_iterations"]:
        values = {name: value for name, value in point.items() if name != "self_iterations"}
        tracker.log_metrics(numbers(values, "sweep.self_iterations."), point["self_iterations"])
    for point in metrics["tolerance"]:
        mode = f".{point['mode']}" if "mode" in point else ""
        values = {name: value for name, value in point.items() if name not in ("tolerance", "mode")}
        prefix = f"sweep.tolerance_{point['tolerance']}{mode}."
        tracker.log_metrics(numbers(values, prefix))


if __name__ == "__main__":
    run_stage(main, "runs", "upcycled")
