"""Training curves of word problems, over training steps."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, StrMethodFormatter

from implicit_models.reporting.figures.axes import label_minor, legend, mark_caps, percent
from implicit_models.reporting.figures.style import RunStyle, new_figure, set_title
from implicit_models.reporting.results import RunResults


def training_curves(runs: Sequence[RunResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw loss, accuracy and self-iterations against training steps, the phase change marked."""
    panels = (
        ("loss", "Training loss (nats)"),
        ("accuracy", f"Training accuracy, all positions{_lengths(runs)}"),
        ("self_iterations", "Self-iterations per sequence, the one that gives the output included"),
    )
    figure = new_figure(8.5, 9.5)
    axes = figure.subplots(3, 1, sharex=True)
    for (metric, title), axis in zip(panels, axes, strict=True):
        for run in runs:
            if metric in run.history:
                series = run.history[metric]
                line = styles[run.name].line(1.4)
                axis.plot(series.steps, series.values, label=run.name, **line)
        for run in runs:
            if run.phase_change is not None:
                axis.axvline(
                    run.phase_change, color=styles[run.name].colour, linestyle=":", linewidth=1.5
                )
        set_title(axis, title)
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    label_minor(axes[0].yaxis, LogFormatter)
    percent(axes[1])
    axes[2].set_ylim(0, 1.25 * axes[2].get_ylim()[1])
    mark_caps(axes[2], runs)
    axes[2].set_xlabel("training step (optimiser steps, both phases)")
    changes = sorted({run.phase_change for run in runs if run.phase_change is not None})
    if changes:
        is_late = changes[-1] > sum(axes[2].get_xlim()) / 2
        axes[2].annotate(
            f"free phase begins at step {', '.join(map(str, changes))}",
            (changes[0] if is_late else changes[-1], 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if is_late else 4, -4),
            textcoords="offset points",
            ha="right" if is_late else "left",
            va="top",
            color=mpl.rcParams["text.color"],
            fontsize=10,
        )
    legend(figure, axes[0])
    return figure


def _lengths(runs: Sequence[RunResults]) -> str:
    """Return to which length the training sequences grow, for a title."""
    ends = {growth[1] for run in runs if (growth := run.entry.length_growth) is not None}
    return f" (sequences grow, to {max(ends)} tokens)" if ends else ""
