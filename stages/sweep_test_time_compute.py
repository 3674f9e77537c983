"""Measure an entry of ``runs`` against the self-iterations and the tolerance it is allowed."""

from pathlib import Path

from implicit_models.evaluation.parameters import SweepParameters
from implicit_models.parameters import read_section
from stages.common import check_test_splits, read_dataset, run_stage
from stages.tracked import open_run, write_results


def main(name: str) -> None:
    """Write the entry's ``test_time_compute.json`` and ``test_time_compute.csv``."""
    dataset, dataset_parameters = read_dataset("runs", name)
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
    with open_run("runs", name, "sweep_test_time_compute", tracked) as tracker:
        result = sweep_test_time_compute(model, split, parameters)
        files = {"test_time_compute.json": result.metrics(), "test_time_compute.csv": result.rows()}
        write_results(name, files, tracker)
        for point in result.self_iterations:
            values = {"accuracy": point.accuracy, "accuracy_last_10": point.accuracy_last_10}
            tracker.log_metrics(
                {f"test_time_compute.{key}": value for key, value in values.items()},
                step=int(point.allowed),
            )


if __name__ == "__main__":
    run_stage(main, "runs")
