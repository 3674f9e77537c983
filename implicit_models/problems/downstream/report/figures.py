"""The figure of test-time compute on downstream tasks: accuracy by allowed self-iterations."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from implicit_models.parameters import digest
from implicit_models.problems.downstream.report.benchmarks import BenchmarkResults
from implicit_models.problems.downstream.tasks import ACCURACIES, AVERAGE
from implicit_models.reporting.figures.axes import label_ends, ticks
from implicit_models.reporting.figures.style import (
    RunStyle,
    new_figure,
    set_title,
    told_apart,
    wrapped,
)
from implicit_models.reporting.lead import listed
from implicit_models.reporting.tables.table import SELF_ITERATIONS

CAPTION = (
    "Downstream tasks against the self-iterations that a token is allowed, by models whose "
    f"benchmarks differ in max_steps alone. {SELF_ITERATIONS}; through a window they count from "
    "when all tokens before have ended. Level lines are explicit models, grey ones models trained "
    "elsewhere."
)

_LABEL = 40  # characters of the label of an axis


def swept(benchmarks: Sequence[BenchmarkResults]) -> list[list[BenchmarkResults]]:
    """Return what figures of self-iterations show, for each way in which models were tested.

    These are the benchmarks of models that have some that differ in ``max_steps`` alone, and those
    of explicit models beside them. Where no accuracy is known of all of the former, there is none.
    """
    alike: dict[tuple, list[BenchmarkResults]] = {}
    for each in benchmarks:
        alike.setdefault(each.tested_on, []).append(each)
    found = []
    for tested in alike.values():
        shown = [each for line in _lines(tested).values() for each in line]
        if columns := _columns(shown):
            found.append(shown + _explicit([each for each in tested if _has(each, columns)]))
    return found


def accuracy_by_self_iterations(
    benchmarks: Sequence[BenchmarkResults], styles: Mapping[str, RunStyle]
) -> Figure:
    """Draw the mean accuracy against the self-iterations allowed, explicit models as level lines.

    It is the average of the paper's seven tasks where all points have it, and otherwise the mean
    of the accuracies that all of them have; bars are standard errors.

    Parameters
    ----------
    benchmarks
        One group of what `swept` gives.
    styles
        Of the models that have one; the others are grey.
    """
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    lines = _lines(benchmarks)
    columns = _columns([each for line in lines.values() for each in line])
    levels = {each.label: [each] for each in _explicit(benchmarks)}
    grey = RunStyle(colour=mpl.rcParams["lines.color"], dash="-")
    models = {name: line[0].label for name, line in (lines | levels).items()}
    looks = told_apart(styles.get(model, grey) for model in models.values())
    drawn = dict(zip(models, looks, strict=True))
    allowed = sorted({_self_iterations(each) for line in lines.values() for each in line})
    ends = {}
    for name, line in (lines | levels).items():
        places = [_self_iterations(each) for each in line] if name in lines else allowed[-1:]
        means, errors = zip(*(_mean(each, columns) for each in line), strict=True)
        if name in levels:
            axis.axhline(means[0], **drawn[name].line(1.4))
        look = drawn[name].line() | {"marker": "o" if name in lines else "", "markersize": 5}
        axis.errorbar(places, means, yerr=errors, capsize=3, **look)
        ends[name] = (places[-1], means[-1])
    axis.set_xscale("log", base=2)
    ticks(axis, allowed)
    axis.set_xlabel(wrapped("allowed self-iterations, the output's included"))
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.set_ylabel(textwrap.fill(_said_of(columns), _LABEL))
    label_ends(axis, ends, drawn, "{:.2%}")
    set_title(axis, f"{_tested_on(benchmarks[0])} (bars: standard error)")
    return figure


def _lines(benchmarks: Sequence[BenchmarkResults]) -> dict[str, list[BenchmarkResults]]:
    """Return the benchmarks of each line by its name, those that are allowed least first.

    It is the model's name, or of a model that has several lines that of the first entry of each.
    """
    lines: dict[str, dict[int, BenchmarkResults]] = {}
    for each in benchmarks:
        if each.content["kind"] == "implicit":
            names = sorted(each.entry.names or ())
            key = digest(each.label, names, each.search_but_steps)
            lines.setdefault(key, {}).setdefault(each.max_steps, each)
    found = [list(line.values()) for line in lines.values() if len(line) > 1]
    models = [line[0].label for line in found]
    return {
        line[0].name if models.count(model) > 1 else model: sorted(
            line, key=lambda each: each.max_steps
        )
        for model, line in zip(models, found, strict=True)
    }


def _explicit(benchmarks: Sequence[BenchmarkResults]) -> list[BenchmarkResults]:
    """Return the first benchmark of each explicit model."""
    found: dict[str, BenchmarkResults] = {}
    for each in benchmarks:
        if each.content["kind"] == "explicit":
            found.setdefault(each.label, each)
    return list(found.values())


def _self_iterations(benchmark: BenchmarkResults) -> int:
    return benchmark.max_steps + 1  # the one that gives the output


def _columns(benchmarks: Sequence[BenchmarkResults]) -> tuple[str, ...]:
    """Return the average where all have it, or else the accuracies that all have."""
    if benchmarks and all(_has(each, (AVERAGE,)) for each in benchmarks):
        return (AVERAGE,)
    return tuple(
        column
        for column in ACCURACIES
        if benchmarks and all(_has(b, (column,)) for b in benchmarks)
    )


def _has(benchmark: BenchmarkResults, columns: Sequence[str]) -> bool:
    return all(benchmark.content["row"].get(column) is not None for column in columns)


def _mean(benchmark: BenchmarkResults, columns: Sequence[str]) -> tuple[float, float]:
    """Return the mean over columns, and its standard error; NaN where one is not known."""
    row, errors = benchmark.content["row"], benchmark.content["standard_errors"]
    known = [math.nan if (e := errors.get(column)) is None else e for column in columns]
    return fmean(row[column] for column in columns), math.hypot(*known) / len(known)


def _said_of(columns: Sequence[str]) -> str:
    if columns == (AVERAGE,):
        return "mean of the seven accuracies"
    return f"accuracy, {'mean of ' if len(columns) > 1 else ''}{listed(columns)}"


def _tested_on(benchmark: BenchmarkResults) -> str:
    """Return all of what groups of `swept` differ in, in lines that a wide page has room for."""
    tasks, limit, max_length = benchmark.tested_on
    items = None if limit is None else f"the first {limit:,} items of each"
    length = None if max_length is None else f"max_length {max_length:,}"
    read = ", ".join(filter(None, (items, length)))
    return ",\n".join(filter(None, (f"Downstream tasks, {tasks}", read)))
