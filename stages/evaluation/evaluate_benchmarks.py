"""Evaluate an entry's final model on its test data, or do what ``benchmarks``, ``readings`` say."""

from pathlib import Path

from implicit_models.problems.problem import evaluation_of, parameters_of
from implicit_models.problems.table import TESTED_APART
from stages.common import (
    TABLES,
    find_table,
    naming,
    read_dataset,
    read_tests,
    run_stage,
    tests_key,
)
from stages.evaluation.tested_apart import evaluate_apart
from stages.finished_checkpoints import discard_recorded
from stages.tracked import open_test, track_data, track_score, track_test, write_results

TESTED = (*TABLES, *TESTED_APART)


def main(name: str) -> None:
    """Write the entry's ``evaluation.json`` and headline metrics, or its ``benchmarks.json``."""
    table = find_table(name, TESTED)
    if table in TESTED_APART:
        evaluate_apart(table, name)
    else:
        _evaluate(table, name)


def _evaluate(table: str, name: str) -> None:
    data = read_dataset(table, name)
    parameters = read_tests("evaluation", table, name, data)
    where = tests_key("evaluation", table, name, data)
    parameters_of(data.kind).check_evaluation(data.key, data.parameters, parameters, where)
    evaluation = evaluation_of(data.kind)
    discard_recorded(name)
    model = Path("models", name, "final")
    sections = {"evaluation": parameters}
    with open_test(
        table,
        name,
        "evaluate_benchmarks",
        sections,
        model=model,
        data=data.folder,
        tested_as=name,
    ) as tracker:
        track_data(tracker, data.name, "evaluation")
        with naming(where):
            found = evaluation.evaluate(model, data.folder, parameters)
        files = {"evaluation.json": found.metrics, "metrics.json": found.headline, **found.files}
        write_results(name, "evaluate_benchmarks", files, tracker)
        track_test(tracker, found.metrics, found.headline)
        if found.score is not None:
            track_score(tracker, table, name, model, found.score)
    found.discard()


if __name__ == "__main__":
    run_stage(main, *TESTED)
