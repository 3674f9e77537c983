"""Figures of word problems: accuracy by length, by position and by test-time compute."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from implicit_models.problems.word_problem.report.lead import compared_length
from implicit_models.problems.word_problem.report.results import (
    WordProblemResults,
    chance_by_length,
)
from implicit_models.reporting.comparison import best_of_kinds, candidates
from implicit_models.reporting.figures.axes import (
    label_ends,
    mark_chance,
    mark_chance_along,
    mark_training_lengths,
    percent,
    ticks,
)
from implicit_models.reporting.figures.compute import compute_figure
from implicit_models.reporting.figures.style import RunStyle, new_figure, set_title


def accuracy_by_length(
    runs: Sequence[WordProblemResults], styles: Mapping[str, RunStyle]
) -> Figure:
    """Draw the accuracy of the last 10 tokens against the length of the sequence."""
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends = {}
    for run in runs:
        values = [run.accuracy_at_end(length) for length in run.lengths]
        axis.plot(run.lengths, values, marker="o", markersize=5, **styles[run.name].line())
        ends[run.name] = (run.lengths[-1], values[-1])
    lengths = sorted({length for run in runs for length in run.lengths})
    axis.set_xscale("log", base=2)
    ticks(axis, lengths)
    axis.set_xlabel("length of the test sequences (tokens)")
    axis.set_ylabel("accuracy, last 10 tokens")
    percent(axis)
    mark_training_lengths(axis, runs)
    mark_chance_at_end(axis, runs, lengths)
    label_ends(axis, ends, styles, "{:.1%}")
    set_title(axis, length_title(runs))
    return figure


def accuracy_by_position(
    runs: Sequence[WordProblemResults], styles: Mapping[str, RunStyle]
) -> Figure:
    """Draw the accuracy at each position of the longest sequences."""
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends = {}
    lengths = sorted({run.lengths[-1] for run in runs})
    for run in runs:
        values = run.by_position[run.lengths[-1]]
        line = styles[run.name].line(1.6)
        axis.plot(np.arange(1, len(values) + 1), values, **line)
        ends[run.name] = (len(values), run.accuracy_at_end(run.lengths[-1]))
    axis.set_xlim(1, lengths[-1])
    axis.set_xlabel("position in the sequence (tokens)")
    axis.set_ylabel("accuracy at this position")
    percent(axis)
    mark_training_lengths(axis, runs)
    levels = [run.chance_at_end(run.lengths[-1]) for run in runs]
    mark_chance(axis, levels, "chance, last 10 tokens:")
    label_ends(axis, ends, styles, "{:.1%}")
    set_title(
        axis,
        f"Where in sequences of {' or '.join(map(str, lengths))} tokens each run loses track\n"
        "(number: mean of the last 10 positions)",
    )
    return figure


def past_distances(runs: Sequence[WordProblemResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw how far states of one product stay apart while the same tokens follow."""
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends = {}
    for run in runs:
        counts, distances = zip(*run.past_distance.items(), strict=True)
        axis.plot(counts, distances, **styles[run.name].line(1.6))
        ends[run.name] = (counts[-1], distances[-1])
    axis.set_yscale("log")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("tokens in common, after different pasts")
    axis.set_ylabel("distance of states, over unequal products")
    label_ends(axis, ends, styles, "{:.2g}")
    set_title(axis, "What the state keeps of how its product was reached\n(number: at the end)")
    return figure


def accuracy_by_compute(
    runs: Sequence[WordProblemResults], styles: Mapping[str, RunStyle]
) -> Figure:
    """Draw accuracy against what is allowed at test time; see `compute_figure`."""
    return compute_figure(
        runs,
        styles,
        score="accuracy_last_10",
        title="Accuracy, last 10 of",
        chances=[run.swept_chance for run in runs],
    )


def mark_chance_at_end(
    axis: Axes, runs: Sequence[WordProblemResults], lengths: Collection[int]
) -> None:
    """Draw what chance has of the last 10 tokens at each of these lengths."""
    known = chance_by_length([(run.dataset, run.evaluation) for run in runs], "accuracy_last_10")
    curves = known.values()
    mark_chance_along(axis, [{n: c for n, c in curve.items() if n in lengths} for curve in curves])


def length_title(runs: Sequence[WordProblemResults]) -> str:
    """Return a title: the best model of each kind at the longest length that all kinds have."""
    length = compared_length(runs) or max(run.lengths[-1] for run in runs)
    seen = [run for run in runs if length in run.lengths]
    found = candidates(seen, lambda run: (run.accuracy_at_end(length), 0.0))
    parts = [
        f"the best {each.kind} model has {each.mean:.1%}"
        + (f" (mean of {len(each.runs)} seeds)" if len(each.runs) > 1 else "")
        for each in best_of_kinds(found, higher_is_better=True)
    ]
    ratios = [f"{ratio:.3g}" for ratio in sorted({length / run.training_length for run in seen})]
    ratio = " to ".join(dict.fromkeys((ratios[0], ratios[-1])))
    return ",\n".join([f"At {length} tokens, {ratio}x the training length", *parts])
