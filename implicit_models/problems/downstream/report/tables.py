"""The table of the downstream tasks: the paper's columns, and its rows beside ours."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from implicit_models.problems.downstream.report.benchmarks import BenchmarkResults
from implicit_models.problems.downstream.tasks import ACCURACIES, AVERAGE, COLUMNS
from implicit_models.reporting.comparison import (
    STEPS_LEFT_OUT,
    Score,
    best_of_kinds,
    candidates_apart,
    fullest,
)
from implicit_models.reporting.entry_results import EntryResults
from implicit_models.reporting.lead import outcome
from implicit_models.reporting.paper import PILE_PERPLEXITY
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.tables.table import Table, number, said_of_each

PAPER = "paper"


def downstream_table(
    benchmarks: Sequence[BenchmarkResults], runs: Mapping[str, RunResults]
) -> Table:
    """Return the scores of every model, and after them the paper's of the same size.

    Parameters
    ----------
    runs
        Our runs by name.
    """
    scores = [_scores(benchmark, runs) for benchmark in benchmarks]
    published = [benchmark.content["published"] for benchmark in benchmarks]
    shown = [*scores, *(entry["row"] for found in published for entry in found)]
    columns = [
        column
        for column in (PILE_PERPLEXITY, *COLUMNS)
        if any(row.get(column) is not None for row in shown)
    ]
    rows: list[list[str]] = []
    for index, benchmark in enumerate(benchmarks):
        errors = benchmark.content["standard_errors"]
        rows.append(
            [
                *(benchmark.name, benchmark.label, _kind(benchmark, runs)),
                f"{benchmark.content['num_parameters']:,}",
                *(_cell(column, scores[index], errors) for column in columns),
                number((benchmark.content.get("cost") or {}).get("seconds")),
            ]
        )
        if published[index] not in published[index + 1 :]:
            rows += [_published_row(entry, columns) for entry in published[index]]
    return Table(
        title="Downstream tasks, zero-shot",
        note=_note(benchmarks, has_published=any(published)),
        columns=["run", "model", "kind", "parameters", *columns, "time (s)"],
        rows=rows,
        num_text_columns=3,
    )


def downstream_lead(
    benchmarks: Sequence[BenchmarkResults], runs: Mapping[str, RunResults]
) -> list[str]:
    """Return how the best model of each kind does on average, where the average is known.

    Of searches that differ in ``max_steps`` alone the `fullest` count, and a sentence says so.
    """
    known = [each for each in benchmarks if each.content["row"].get(AVERAGE) is not None]
    if not known:
        return []
    if len({each.tested_on for each in known}) > 1:
        other = "other tasks, another limit or another max_length"
        headline = f"models were tested with {other}: no comparison can be made"
        return [f"Downstream tasks, zero-shot: {headline}."]
    found, _ = candidates_apart(known, runs.values(), _average)
    told = outcome(
        best_of_kinds(found, higher_is_better=True),
        lambda each: each.written(lambda share: f"{100 * share:.2f} %"),
        higher_is_better=True,
    )
    sentences = [f"Downstream tasks, zero-shot, mean of the seven accuracies: {told}."]
    if len(fullest(known, runs.values())) < len(known):
        sentences.append(STEPS_LEFT_OUT)
    return sentences


def _average(benchmark: EntryResults) -> Score:
    """Return the mean of the seven accuracies; an error that is not known is infinite."""
    error = benchmark.content["standard_errors"].get(AVERAGE)
    return benchmark.content["row"][AVERAGE], math.inf if error is None else error


def _scores(benchmark: BenchmarkResults, runs: Mapping[str, RunResults]) -> dict[str, Any]:
    """Return a row, with the perplexity of the paper's corpus where it is known."""
    run = _run(benchmark, runs)
    return {**benchmark.content["row"], **(run.paper_columns() if run is not None else {})}


def _run(benchmark: BenchmarkResults, runs: Mapping[str, RunResults]) -> RunResults | None:
    return runs.get(benchmark.trained_entry or "")


def _kind(benchmark: BenchmarkResults, runs: Mapping[str, RunResults]) -> str:
    run = _run(benchmark, runs)
    return benchmark.content["kind"] if run is None else run.kind


def _published_row(entry: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    scores = (_cell(column, entry["row"], {}) for column in columns)
    return [PAPER, entry["model"], "", "-", *scores, "-"]


def _cell(column: str, row: Mapping[str, Any], errors: Mapping[str, Any]) -> str:
    value, error = row.get(column), errors.get(column)
    if value is None:
        return "-"
    scale = 100 if column in (*ACCURACIES, AVERAGE) else 1
    return f"{scale * value:,.2f}" + ("" if error is None else f" ± {scale * error:,.2f}")


def _note(benchmarks: Sequence[BenchmarkResults], *, has_published: bool) -> str:
    *others, last = (column for column, (_, metric) in ACCURACIES.items() if metric == "acc_norm")
    sentences = [
        f"Accuracies in percent, normalised by length for {', '.join(others)} and {last}; the "
        "average is that of the paper's seven accuracies, and is given where all seven are. After "
        "± is the standard error.",
        *_items(benchmarks),
        *_limits(benchmarks),
    ]
    if has_published:
        sentences.append(
            f"Rows named {PAPER} are those of Schöne et al. (2025) of the same family and size: "
            "trained on 207 billion tokens of the deduplicated Pile."
        )
    return " ".join(sentences)


def _limits(benchmarks: Sequence[BenchmarkResults]) -> list[str]:
    """Return sentences that name the rows scored on a part of the items only."""
    limits = {benchmark.name: benchmark.content.get("limit") for benchmark in benchmarks}
    if not any(limits.values()):
        return []
    return said_of_each(
        {
            name: "All items of the files were scored."
            if limit is None
            else f"Only the first {limit:,} items of each task were scored, if it has more."
            for name, limit in limits.items()
        }
    )


def _items(benchmarks: Sequence[BenchmarkResults]) -> list[str]:
    """Return sentences on how many items were scored, each once for all its models."""
    models: dict[str, list[str]] = {}
    for benchmark in benchmarks:
        counts = benchmark.content["num_items"]
        items = ", ".join(f"{name} {counts[name]:,}" for name in ACCURACIES if counts.get(name))
        models.setdefault(items, []).append(benchmark.name)
    return [f"Items of {', '.join(names)}: {items}." for items, names in models.items() if items]
