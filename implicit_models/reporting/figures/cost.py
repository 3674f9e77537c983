"""The figure of what quality costs: a score against the FLOPs and the time of training."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from implicit_models.reporting.figures.axes import label_minor, legend, mark_chance, percent
from implicit_models.reporting.figures.style import RunStyle, is_narrow, new_figure, set_title
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.summary import group_by_seed


def of_shares(axis: Axes, runs: Sequence[RunResults]) -> None:
    """Make an axis one of shares that are right, with a line at chance."""
    percent(axis)
    mark_chance(axis, [run.ranked_chance for run in runs])


def score_by_cost(
    runs: Sequence[RunResults],
    styles: Mapping[str, RunStyle],
    scores: Mapping[str, float],
    label: str,
    finish: Callable[[Axes, Sequence[RunResults]], None] = of_shares,
) -> Figure:
    """Draw a score of each run against its training FLOPs and against its training time.

    FLOPs are those of all phases, and of the model that the weights came from. A run whose FLOPs
    are not known is on the right alone.

    Parameters
    ----------
    scores
        That of each run, by its name.
    label
        What the score is, for its axis.
    finish
        Sets the scale of each axis, once all is drawn.
    """
    figure = new_figure(4.6, 8.0)
    axes = figure.subplots(2, 1) if is_narrow() else figure.subplots(1, 2, sharey=True)
    costs = (
        ("training FLOPs", lambda run: run.flops_with_source),
        ("training time (seconds)", lambda run: run.train_seconds),
    )
    for axis, (name, cost) in zip(axes, costs, strict=True):
        for first, group in group_by_seed(runs).items():
            known = [(cost(run), scores[run.name]) for run in group if cost(run)]
            if known:
                axis.plot(
                    *zip(*known, strict=True),
                    "o",
                    label=first if len(group) == 1 else f"{first} ({len(group)} seeds)",
                    color=styles[first].colour,
                    markersize=8,
                    alpha=0.8,
                )
        axis.set_xscale("log")
        label_minor(axis.xaxis)
        axis.set_xlabel(name)
        finish(axis, runs)
    axes[0].set_ylabel(label)
    set_title(axes[0], "What it costs in FLOPs")
    set_title(axes[1], "and in seconds of the machine it ran on")
    legend(figure, axes[1])
    return figure
