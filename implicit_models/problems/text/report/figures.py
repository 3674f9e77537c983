"""Figures of text corpora: perplexity by length, by position and by test-time compute."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from implicit_models.problems.text.report.results import MODES, TextResults, mean_of
from implicit_models.reporting.figures.axes import (
    column,
    label_ends,
    legend,
    logarithmic,
    mark_training_lengths,
    perplexity_scale,
    ticks,
)
from implicit_models.reporting.figures.style import (
    RunStyle,
    four_axes,
    new_figure,
    set_title,
    wrapped,
)

_MARKERS = dict(zip(MODES, ("o", "s", "^"), strict=True))


def perplexity_by_length(runs: Sequence[TextResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the perplexity of the same text, packed to ever longer sequences."""
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends = {}
    for run in runs:
        found = [run.evaluation["length_extrapolation"][str(n)] for n in run.lengths]
        values, errors = column(found, "perplexity"), column(found, "standard_error")
        line = styles[run.name].line() | {"marker": "o", "markersize": 5, "capsize": 3}
        axis.errorbar(run.lengths, values, yerr=errors, **line)
        ends[run.name] = (run.lengths[-1], values[-1])
    axis.set_xscale("log", base=2)
    ticks(axis, sorted({length for run in runs for length in run.lengths}))
    axis.set_xlabel("length of the test sequences (tokens)")
    axis.set_ylabel("perplexity")
    perplexity_scale(axis, _heights(axis))
    mark_training_lengths(axis, runs)
    label_ends(axis, ends, styles, "{:.4g}")
    set_title(axis, "The same text in ever longer sequences (bars: standard error)")
    return figure


def perplexity_by_position(runs: Sequence[TextResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the perplexity at each position of the longest sequences."""
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends = {}
    lengths = sorted({run.lengths[-1] for run in runs})
    for run in runs:
        curve = run.perplexity_by_position[run.lengths[-1]]
        line = styles[run.name].line(1.6) | {"marker": "o", "markersize": 3}
        axis.plot(curve.positions, curve.perplexity, **line)
        ends[run.name] = (float(curve.positions[-1]), float(curve.perplexity[-1]))
    axis.set_xscale("log", base=2)
    ticks(axis, [2**power for power in range(int(np.log2(lengths[-1])) + 1)])
    axis.set_xlabel(
        wrapped("position in the sequence (tokens; each point ends a range of positions)")
    )
    axis.set_ylabel("perplexity")
    perplexity_scale(axis, _heights(axis))
    mark_training_lengths(axis, runs)
    label_ends(axis, ends, styles, "{:.4g}")
    set_title(axis, f"What a longer context gives, sequences of {_listed(lengths)} tokens")
    return figure


def perplexity_by_compute(runs: Sequence[TextResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw perplexity and residual against self-iterations, perplexity and work by tolerance."""
    swept = [(run, run.test_time_compute) for run in runs if run.test_time_compute is not None]
    figure = new_figure(7.0, 11.0)
    top, bottom, right, right_bottom = four_axes(figure)
    for run, sweep in swept:
        line = styles[run.name].line()
        points = sweep["self_iterations"]
        allowed = column(points, "self_iterations")
        marked = line | {"marker": "o", "markersize": 4}
        top.plot(allowed, column(points, "perplexity"), label=run.name, **marked)
        bottom.plot(allowed, column(points, "relative_residual"), **marked)
        for mode, marker in _MARKERS.items():
            points = [point for point in sweep["tolerance"] if point["mode"] == mode]
            allowed = column(points, "tolerance")
            marked = line | {"marker": marker, "markersize": 5}
            right.plot(allowed, column(points, "perplexity"), **marked)
            work = [mean_of(point["evaluations_per_token"]) for point in points]
            right_bottom.plot(allowed, [np.nan if w is None else w for w in work], **marked)
    right.sharey(top)
    perplexity_scale(top, [*_heights(top), *_heights(right)])
    for axis in (top, right):
        set_title(axis, f"Perplexity, {_listed({s['length'] for _, s in swept})} tokens")
    bottom.set_xscale("log", base=2)
    ticks(bottom, _allowed(swept, "self_iterations"))
    logarithmic(bottom)
    bottom.set_xlabel("self-iterations, the output's included")
    set_title(bottom, "Relative residual")
    right_bottom.set_xscale("log")
    ticks(right_bottom, _allowed(swept, "tolerance"))
    right_bottom.invert_xaxis()
    right_bottom.set_ylim(bottom=0)
    right_bottom.set_xlabel("tolerance (stricter to the right)")
    set_title(right_bottom, "Evaluations per token, mean")
    for mode, marker in _MARKERS.items():
        grey = mpl.rcParams["lines.color"]
        right.add_line(Line2D([], [], color=grey, marker=marker, linestyle="", label=mode))
    right.legend()
    legend(figure, top)
    return figure


def _heights(axis: Axes) -> list[float]:
    return [float(value) for line in axis.lines for value in np.atleast_1d(line.get_ydata())]


def _allowed(swept: Sequence[tuple[TextResults, Mapping]], name: str) -> list[float]:
    return sorted({point[name] for _, sweep in swept for point in sweep[name]})


def _listed(lengths: set[int] | Sequence[int]) -> str:
    return ", ".join(map(str, sorted(lengths)))
