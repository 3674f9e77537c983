"""Training curves of language models of text, over what they have read and computed."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, StrMethodFormatter

from implicit_models.problems.text.report.results import TextResults
from implicit_models.reporting.figures.axes import label_minor, legend, mark_caps
from implicit_models.reporting.figures.style import RunStyle, is_narrow, new_figure, set_title


def text_training_curves(runs: Sequence[TextResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the loss over training tokens and training FLOPs, and the self-iterations over tokens.

    The thin line is the loss on each step's batch, the marked one that on held-out text.
    """
    figure = new_figure(7.0, 9.0)
    axes = figure.subplot_mosaic("t;f;i" if is_narrow() else "tf;ii")
    tokens, flops, iterations = axes["t"], axes["f"], axes["i"]
    for run in runs:
        for axis, unit in ((tokens, "tokens"), (flops, "training_flops")):
            _draw(axis, run, unit, "loss", styles[run.name].line(0.8) | {"alpha": 0.45})
            marked = styles[run.name].line(1.6) | {"marker": "o", "markersize": 3}
            _draw(axis, run, unit, "validation_loss", marked | {"label": run.name})
            _mark_phase_change(axis, run, unit, styles[run.name].colour)
        _draw(iterations, run, "tokens", "self_iterations", styles[run.name].line(1.2))
        _mark_phase_change(iterations, run, "tokens", styles[run.name].colour)
    flops.sharey(tokens)
    if flops.lines:
        flops.set_xscale("log")
        label_minor(flops.xaxis)
    has_phases = any(run.phase_change is not None for run in runs)
    set_title(tokens, "Loss (nats per token)\n(thin: batches; marked: held out)")
    dotted = "\n(dotted line: the free phase begins)" if has_phases else ""
    set_title(flops, f"The same loss{dotted}")
    tokens.set_xlabel("training tokens")
    flops.set_xlabel("training FLOPs")
    tokens.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    set_title(iterations, "Self-iterations per sequence, the one that gives the output included")
    iterations.set_xlabel("training tokens")
    iterations.set_ylim(0, 1.1 * iterations.get_ylim()[1])
    mark_caps(iterations, runs)
    iterations.sharex(tokens)
    tokens.xaxis.set_major_formatter(EngFormatter(sep=""))
    legend(figure, tokens)
    return figure


def _draw(axis: Axes, run: TextResults, unit: str, metric: str, line: Mapping) -> None:
    """Draw a metric where it and its unit were logged."""
    if metric in run.history and unit in run.history:
        series = run.history[metric]
        axis.plot(_at(run, unit, series.steps), series.values, **line)


def _mark_phase_change(axis: Axes, run: TextResults, unit: str, colour: str) -> None:
    if run.phase_change is not None and unit in run.history:
        where = _at(run, unit, np.array([run.phase_change]))[0]
        axis.axvline(where, color=colour, linestyle=":", linewidth=1.5)


def _at(run: TextResults, unit: str, steps: np.ndarray) -> np.ndarray:
    """Return how many tokens or FLOPs training had used by some of its steps."""
    counted = run.history[unit]
    return np.interp(steps, counted.steps, counted.values)
