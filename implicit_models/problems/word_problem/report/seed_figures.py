"""Figures of word problems in which all seeds of a model are one: bands, and layers by length."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from implicit_models.problems.word_problem.report.figures import mark_chance_at_end
from implicit_models.problems.word_problem.report.results import WordProblemResults
from implicit_models.reporting.figures.axes import (
    column,
    label_ends,
    legend,
    mark_chance,
    mark_training_lengths,
    percent,
    ticks,
)
from implicit_models.reporting.figures.style import RunStyle, new_figure, set_title
from implicit_models.reporting.summary import group_by_seed

TRACKED = 0.9
"""The accuracy at a position from which on a model is taken to have lost the product."""


def accuracy_of_seeds(runs: Sequence[WordProblemResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the accuracy by length, for each model the mean of its seeds and their range.

    It is that of the last 10 tokens, at the lengths that all seeds were tested at.
    """
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends, drawn = {}, {}
    shown: set[int] = set()
    groups = group_by_seed(runs)
    most = max(map(len, groups.values()), default=0)
    for name, group in groups.items():
        lengths = sorted(set.intersection(*(set(run.lengths) for run in group)))
        if not lengths:
            continue
        table = np.array([[run.accuracy_at_end(length) for length in lengths] for run in group])
        axis.plot(lengths, table.mean(0), marker="o", markersize=5, **styles[name].line())
        if len(group) > 1:
            low, high = table.min(0), table.max(0)
            axis.fill_between(lengths, low, high, color=styles[name].colour, alpha=0.2, linewidth=0)
        seeds = "1 seed" if len(group) == 1 else f"{len(group)} seeds"
        label = f"{name} ({seeds})" if most > 1 else name
        ends[label] = (lengths[-1], float(table.mean(0)[-1]))
        drawn[label] = styles[name]
        shown |= set(lengths)
    axis.set_xscale("log", base=2)
    ticks(axis, sorted(shown))
    axis.set_xlabel("length of the test sequences (tokens)")
    axis.set_ylabel("accuracy, last 10 tokens")
    percent(axis)
    mark_training_lengths(axis, runs)
    mark_chance_at_end(axis, runs, shown)
    label_ends(axis, ends, drawn, "{:.1%}")
    title = "The mean over the seeds of each model (band: from the lowest seed to the highest)"
    set_title(axis, title if most > 1 else "Accuracy by length")
    return figure


def layers_by_length(runs: Sequence[WordProblemResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw how many tokens models follow, against the number of their layers.

    A model follows so many tokens as come before the first position with an accuracy below
    `TRACKED`, in the longest test with enough sequences. Every run is a point, beside the others
    where they would hide it; an arrow says that it followed all of that test, and a line goes
    through the best of each number of layers. Models that differ in more than layers and seed have
    lines of their own; those without a number of layers are not drawn.
    """
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    drawn = [run for run in runs if run.num_layers is not None]
    longest = max((run.tracked_at_most for run in drawn), default=1)
    groups = _alike_but_layers(drawn)
    labels = {name: _trained(alike) for name, alike in groups.items()}
    places = Counter()
    for name, alike in groups.items():
        line = styles[name].line()
        points = [(run.tracked_length(TRACKED), run.num_layers or 0) for run in alike]
        best = {layers: max(n for n, each in points if each == layers) for _, layers in points}
        ordered = sorted(best)
        is_one = list(labels.values()).count(labels[name]) == 1
        label = labels[name] if is_one else f"{labels[name]}, as {name}"
        axis.plot([best[layers] for layers in ordered], ordered, label=label, **line)
        for run, (length, layers) in zip(alike, points, strict=True):
            beside = _beside(length, places[length, layers])
            places[length, layers] += 1
            axis.plot(beside, layers, "o", color=line["color"], markersize=6, alpha=0.7)
            if length >= run.tracked_at_most:
                arrow = {"arrowstyle": "->", "color": line["color"]}
                axis.annotate("", (beside * 1.35, layers), (beside, layers), arrowprops=arrow)
    axis.set_xscale("symlog", base=2, linthresh=1)
    axis.set_xlim(-0.3, 1.7 * longest)
    powers = [2**power for power in range(longest.bit_length()) if 1.4 * 2**power < longest]
    ticks(axis, [0, *powers, longest])
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylim(bottom=0)
    axis.set_xlabel(f"tokens followed (accuracy at each at least {TRACKED:.0%})")
    axis.set_ylabel("layers")
    mark_training_lengths(axis, drawn)
    legend(figure, axis)
    set_title(axis, "How many layers it takes to follow a product for so long")
    return figure


def _trained(alike: Sequence[WordProblemResults]) -> str:
    """Return what some runs are, and up to which length they were trained."""
    lengths = " or ".join(map(str, sorted({run.training_length for run in alike})))
    runs = "1 run" if len(alike) == 1 else f"{len(alike)} runs"
    what = f"{alike[0].kind} {alike[0].entry.model.family}"
    return f"{what}: {runs}, trained up to {lengths}"


def _beside(length: int, before: int) -> float:
    """Return where a point is drawn that comes after others at one place: right, left, right."""
    side = (before + 1) // 2 * (1 if before % 2 else -1)
    return length * 2 ** (0.09 * side) if length else 0.09 * side


def _alike_but_layers(runs: Sequence[WordProblemResults]) -> dict[str, list[WordProblemResults]]:
    """Group runs whose models differ in nothing but their layers, by the name of the first."""
    groups: dict[str, list[WordProblemResults]] = {}
    firsts: dict[str, str] = {}
    for run in runs:
        fields = run.entry.model.model_dump(exclude={"num_layers"})
        groups.setdefault(firsts.setdefault(repr(fields), run.name), []).append(run)
    return groups


def accuracy_by_iterations(
    runs: Sequence[WordProblemResults], styles: Mapping[str, RunStyle]
) -> Figure:
    """Draw the accuracy by the self-iterations allowed: for each model all seeds, and the best.

    The best is the seed with the highest accuracy at the most self-iterations, of the same
    sequences that are drawn. Models that were not swept are left out.
    """
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends = {}
    sweeps = {run.name: run.test_time_compute for run in runs if run.test_time_compute is not None}
    swept = [run for run in runs if run.name in sweeps]
    for name, group in group_by_seed(swept).items():
        points = [sweeps[run.name]["self_iterations"] for run in group]
        curves = [
            (column(each, "self_iterations"), column(each, "accuracy_last_10")) for each in points
        ]
        for steps, accuracies in curves:
            axis.plot(steps, accuracies, alpha=0.5, **styles[name].line(1.0))
        steps, accuracies = max(curves, key=lambda curve: curve[1][-1])
        axis.plot(steps, accuracies, marker="o", markersize=4, **styles[name].line(2.4))
        ends[name] = (steps[-1], accuracies[-1])
    allowed = {p["self_iterations"] for each in sweeps.values() for p in each["self_iterations"]}
    axis.set_xscale("log", base=2)
    ticks(axis, sorted(allowed))
    axis.set_xlabel("self-iterations, the output's included")
    axis.set_ylabel("accuracy, last 10 tokens")
    percent(axis)
    mark_chance(axis, [run.swept_chance for run in swept])
    label_ends(axis, ends, styles, "{:.1%}")
    lengths = sorted({sweep["length"] for sweep in sweeps.values()})
    tokens = f"Sequences of {' or '.join(map(str, lengths))} tokens"
    has_seeds = len(group_by_seed(swept)) < len(swept)
    of = "the best seed of each model on them, and all" if has_seeds else "each model"
    set_title(axis, f"{tokens}: {of}" if swept else "No model here was swept")
    return figure
