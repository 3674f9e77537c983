"""The summary of all runs: the numbers, and how many of the runs that differ in seed succeed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from implicit_models.reporting.benchmark_results import BenchmarkResults
from implicit_models.reporting.paper import perplexity_column
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.reading_results import ReadingResults
from implicit_models.reporting.results import RunResults


def summarise(
    runs: Iterable[RunResults],
    parameters: ReportParameters,
    mlflow_run_ids: Mapping[str, str | None],
    benchmarks: Sequence[BenchmarkResults] = (),
    readings: Sequence[ReadingResults] = (),
) -> dict[str, Any]:
    """Give the content of ``summary.json``.

    Under ``runs`` is each run by name; under ``success`` each group of runs of word problems whose
    parameters differ in nothing but the seed, under its first run's name: every run of a group
    counts. Under ``benchmarks`` are the downstream scores, by the names of the paper's columns, and
    under ``downstream`` of a run are those of its own benchmarks, by their names.

    Parameters
    ----------
    mlflow_run_ids
        Identifier of each run's parent run in the tracking store, where there is one.
    """
    runs = list(runs)
    summary: dict[str, Any] = {
        "runs": {run.name: _summarise_run(run, mlflow_run_ids.get(run.name)) for run in runs},
        "success": {
            name: _success(group, parameters.success_threshold)
            for name, group in group_by_seed(runs).items()
            if group[0].data == "word_problem"
        },
        "benchmarks": {
            benchmark.name: _summarise_benchmark(benchmark, mlflow_run_ids.get(benchmark.name))
            for benchmark in benchmarks
        },
        "readings": {
            reading.name: _summarise_reading(reading, mlflow_run_ids.get(reading.name))
            for reading in readings
        },
    }
    for benchmark in benchmarks:
        if benchmark.entry in summary["runs"]:
            rows = summary["runs"][benchmark.entry].setdefault("downstream", {})
            rows[benchmark.name] = dict(benchmark.content["row"])
    return summary


def group_by_seed(runs: Iterable[RunResults]) -> dict[str, list[RunResults]]:
    """Group the runs whose parameters differ in nothing but the seed, by their first run's name."""
    runs = list(runs)
    models = {run.name: run.entry for run in runs}
    groups: dict[str, list[RunResults]] = {}
    for run in runs:
        groups.setdefault(run.entry.seed_group(models), []).append(run)
    return {group[0].name: group for group in groups.values()}


def _summarise_run(run: RunResults, mlflow_run_id: str | None) -> dict[str, Any]:
    scores = _text_scores(run) if run.data == "text" else _word_problem_scores(run)
    return {
        "kind": run.kind,
        "data": run.data,
        "num_parameters": run.evaluation["num_parameters"],
        **scores,
        "training_flops": run.training_flops,
        "num_training_tokens": run.num_training_tokens,
        "train_seconds": run.train_seconds,
        "tokens_per_second": run.tokens_per_second,
        "peak_memory_bytes": run.peak_memory_bytes,
        "energy_joules": run.energy_joules,
        "evaluation_flops_per_token": (run.evaluation.get("cost") or {}).get("flops_per_token"),
        "mlflow_run_id": mlflow_run_id,
    }


def _word_problem_scores(run: RunResults) -> dict[str, Any]:
    evaluation = run.evaluation
    return {
        "accuracy": dict(evaluation["accuracy"]),
        "accuracy_last_10": dict(evaluation["accuracy_last_10"]),
        "self_iterations": dict(evaluation["self_iterations"]),
        "evaluations_per_token": dict(evaluation["evaluations_per_token"]),
        "mode_token_match": evaluation["mode_token_match"],
    }


def _text_scores(run: RunResults) -> dict[str, Any]:
    evaluation = run.evaluation
    overall = evaluation["perplexity"]
    names = ("perplexity", "standard_error", "nats_per_token", "bits_per_byte")
    scores = {name: overall[name] for name in names}
    column = perplexity_column(run.dataset)
    if column is not None:
        scores[column] = overall["perplexity"]
    return {
        **scores,
        "length_extrapolation": {
            length: found["perplexity"]
            for length, found in evaluation["length_extrapolation"].items()
        },
        "self_iterations": evaluation["self_iterations"],
        "evaluations_per_token": evaluation["evaluations_per_token"],
    }


def _summarise_benchmark(benchmark: BenchmarkResults, mlflow_run_id: str | None) -> dict[str, Any]:
    content = benchmark.content
    return {
        "model": benchmark.model,
        "entry": benchmark.entry,
        "kind": content["kind"],
        "num_parameters": content["num_parameters"],
        **content["row"],
        "standard_errors": dict(content["standard_errors"]),
        "mlflow_run_id": mlflow_run_id,
    }


def _summarise_reading(reading: ReadingResults, mlflow_run_id: str | None) -> dict[str, Any]:
    scores = ("perplexity", "standard_error", "nats_per_token", "bits_per_byte", "num_tokens")
    return {
        "model": reading.model,
        "corpus": reading.corpus,
        "kind": reading.content["kind"],
        "num_parameters": reading.content["num_parameters"],
        **{score: reading.content["perplexity"][score] for score in scores},
        "mlflow_run_id": mlflow_run_id,
    }


def _success(group: list[RunResults], threshold: float) -> dict[str, Any]:
    length = group[0].solved_length
    solved = [r for r in group if r.evaluation["accuracy_last_10"][str(length)] >= threshold]
    return {
        "num_runs": len(group),
        "num_solved": len(solved),
        "rate": len(solved) / len(group),
        "threshold": threshold,
        "length": length,
        "runs": [run.name for run in group],
    }
