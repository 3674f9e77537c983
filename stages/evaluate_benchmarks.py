"""Evaluate the final model of an entry on its test data, or an entry of ``benchmarks`` on tasks."""

from pathlib import Path
from typing import Any

from implicit_models.data.parameters import CorpusParameters
from stages.common import TABLES, DataParameters, find_table, read_dataset, run_stage
from stages.ended_trainings import discard_recorded
from stages.evaluation_stage import check_test_splits, read_part
from stages.tracked import numbers, open_run, write_results

BENCHMARKS = "benchmarks"


def main(name: str) -> None:
    """Write the entry's ``evaluation.json`` and headline metrics, or its ``benchmarks.json``."""
    table = find_table(name, (*TABLES, BENCHMARKS))
    if table == BENCHMARKS:
        from stages.downstream import evaluate_downstream

        evaluate_downstream(name)
    else:
        _evaluate(table, name, *read_dataset(table, name))


def _evaluate(table: str, name: str, dataset: str, data: DataParameters) -> None:
    parameters = read_part("evaluation", data)
    if not isinstance(data, CorpusParameters):
        lengths, count = parameters.lengths, parameters.num_sequences
        check_test_splits("evaluation.word_problem", lengths, count, dataset, data)

    from stages.own_data import evaluate_corpus, evaluate_word_problem

    discard_recorded(name)
    folders = Path("models", name, "final"), Path("data", dataset)
    evaluate = evaluate_corpus if isinstance(data, CorpusParameters) else evaluate_word_problem
    with open_run(table, name, "evaluate_benchmarks", {"evaluation": parameters}) as tracker:
        metrics, files, store = evaluate(*folders, parameters)
        files = {"evaluation.json": metrics, "metrics.json": headline(metrics), **files}
        write_results(name, files, tracker)
        tracker.log_metrics(numbers(metrics, "evaluation."))
    if store is not None:
        store.discard()


def headline(metrics: dict[str, Any]) -> dict[str, Any]:
    """Give the few metrics that fit a table of experiments."""
    if metrics["data"] == "text":
        perplexity = metrics["perplexity"]
        found = {name: perplexity[name] for name in ("perplexity", "bits_per_byte")}
        found["length_extrapolation"] = {
            length: each["perplexity"] for length, each in metrics["length_extrapolation"].items()
        }
        if metrics["kind"] == "implicit":
            found["evaluations_per_token"] = metrics["evaluations_per_token"]
        return found
    found = {"accuracy_last_10": metrics["accuracy_last_10"]}
    if metrics["kind"] == "implicit":
        for name in ("self_iterations", "evaluations_per_token"):
            found[name] = {length: each["mean"] for length, each in metrics[name].items()}
        found["mode_token_match"] = metrics["mode_token_match"]
    return found


if __name__ == "__main__":
    run_stage(main, *TABLES, BENCHMARKS)
