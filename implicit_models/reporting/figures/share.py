"""The figure of how much of a training its bounded phase should have."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from implicit_models.reporting.figures.axes import legend, mark_chance, percent
from implicit_models.reporting.figures.style import RunStyle, new_figure, set_title
from implicit_models.reporting.results import RunResults


def score_by_bounded_share(
    runs: Sequence[RunResults],
    styles: Mapping[str, RunStyle],
    scores: Mapping[str, float],
    label: str,
) -> Figure:
    """Draw what implicit models have right against the share of their steps in the bounded phase.

    Every run is a point. A line goes through the means of the runs of one model, a share each.

    Parameters
    ----------
    scores
        The share that each run has right, by its name.
    label
        What it is, for its axis.
    """
    figure = new_figure(4.6)
    axis = figure.subplots()
    models: dict[str, dict[float, list[float]]] = {}
    for run in runs:
        if run.phase_change is not None and run.num_training_steps:
            share = round(run.phase_change / run.num_training_steps, 3)
            first = next(each.name for each in runs if each.entry.model == run.entry.model)
            models.setdefault(first, {}).setdefault(share, []).append(scores[run.name])
    for first, found in models.items():
        colour, shares = styles[first].colour, sorted(found)
        means = [fmean(found[share]) for share in shares]
        axis.plot(shares, means, color=colour, linewidth=2, label=first)
        for share in shares:
            axis.plot([share] * len(found[share]), found[share], "o", color=colour, alpha=0.7)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_xticks(sorted({share for found in models.values() for share in found}))
    axis.set_xlabel("share of the training steps in the bounded phase")
    axis.set_ylabel(label)
    percent(axis)
    mark_chance(axis, [run.ranked_chance for run in runs])
    if len(models) > 1:
        legend(figure, axis)
    set_title(axis, "Bounded phase first, free phase then: every run, and the mean of each share")
    return figure
