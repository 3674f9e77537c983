"""Evaluate the final model of an entry of params.yaml on its test sequences."""

from pathlib import Path
from typing import Any

from implicit_models.evaluation.parameters import EvaluationParameters
from implicit_models.parameters import read_section
from stages.common import TABLES, read_dataset, run_stage
from stages.ended_trainings import discard_recorded
from stages.evaluation_stage import check_test_splits, find_table
from stages.tracked import numbers, open_run, write_results


def main(name: str) -> None:
    """Write the entry's ``evaluation.json``, its table by position and its headline metrics."""
    table = find_table(name)
    dataset, dataset_parameters = read_dataset(table, name)
    parameters = read_section("evaluation", EvaluationParameters)
    check_test_splits(
        "evaluation", parameters.lengths, parameters.num_sequences, dataset, dataset_parameters
    )

    from implicit_models.data.word_problems import open_splits
    from implicit_models.evaluation.state_tracking import evaluate_state_tracking
    from implicit_models.language_models.placement import default_device
    from implicit_models.language_models.serialisation import load_model

    discard_recorded(name)
    names = {length: f"test_L{length}" for length in parameters.lengths}
    data = open_splits(Path("data", dataset), names.values())
    splits = {length: data.split(split) for length, split in names.items()}
    model = load_model(Path("models", name, "final"), default_device())
    tracked = {"evaluation": parameters}
    with open_run(table, name, "evaluate_benchmarks", tracked) as tracker:
        result = evaluate_state_tracking(model, splits, parameters)
        metrics = result.metrics()
        files = {
            "evaluation.json": metrics,
            "evaluation_by_position.csv": result.position_rows(),
            "metrics.json": headline(metrics),
        }
        write_results(name, files, tracker)
        tracker.log_metrics(numbers(metrics, "evaluation."))


def headline(metrics: dict[str, Any]) -> dict[str, Any]:
    """Give the few metrics that fit a table of experiments."""
    found = {"accuracy_last_10": metrics["accuracy_last_10"]}
    if metrics["kind"] == "implicit":
        for name in ("self_iterations", "evaluations_per_token"):
            found[name] = {length: each["mean"] for length, each in metrics[name].items()}
        found["mode_token_match"] = metrics["mode_token_match"]
    return found


if __name__ == "__main__":
    run_stage(main, *TABLES)
