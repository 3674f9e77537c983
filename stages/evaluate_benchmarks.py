"""Evaluate an entry's final model on its test data, or do what ``benchmarks``, ``readings`` say."""

from pathlib import Path

from implicit_models.data.parameters import CorpusParameters
from stages.common import TABLES, DataParameters, find_table, read_dataset, run_stage
from stages.evaluation_stage import check_test_splits, headline, read_part, score
from stages.finished_checkpoints import discard_recorded
from stages.tracked import numbers, open_run, track_data, track_score, write_results

TESTED = (*TABLES, "benchmarks", "readings")


def main(name: str) -> None:
    """Write the entry's ``evaluation.json`` and headline metrics, or its ``benchmarks.json``."""
    table = find_table(name, TESTED)
    if table == "benchmarks":
        from stages.downstream import evaluate_downstream

        evaluate_downstream(name)
    elif table == "readings":
        from stages.readings import evaluate_reading

        evaluate_reading(name)
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
        track_data(tracker, dataset, "evaluation")
        metrics, files, store = evaluate(*folders, parameters)
        files = {"evaluation.json": metrics, "metrics.json": headline(metrics), **files}
        write_results(name, files, tracker)
        tracker.log_metrics(numbers(metrics, "evaluation."))
        track_score(tracker, table, name, folders[0], score(metrics))
    if store is not None:
        store.discard()


if __name__ == "__main__":
    run_stage(main, *TESTED)
