"""The figure of test-time compute where scores are accuracies."""

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.figure import Figure

from implicit_models.reporting.figures.axes import (
    column,
    legend,
    logarithmic,
    mark_chance,
    percent,
    ticks,
)
from implicit_models.reporting.figures.style import RunStyle, four_axes, new_figure, set_title
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.tables.table import SELF_ITERATIONS

COMPUTE_CAPTION = (
    "Test-time compute: left whole sequences against the allowed number of self-iterations, right "
    "the tolerance of the search, through the sliding window where it has one. "
    f"{SELF_ITERATIONS}."
)


def compute_figure(
    runs: Sequence[RunResults],
    styles: Mapping[str, RunStyle],
    *,
    score: str,
    title: str,
    chances: Iterable[float | None],
    guess: str = "chance",
) -> Figure:
    """Draw accuracy and residual against self-iterations, accuracy and iterations by tolerance.

    Parameters
    ----------
    score
        The name of the accuracy in the runs' sweeps.
    title
        What it is, ``"Accuracy, last 10 of"``; the tokens of a sequence follow.
    chances
        What chance has of it at the length that was swept; None where that is not known.
    guess
        What the line at it is called.
    """
    swept = [(run, run.test_time_compute) for run in runs if run.test_time_compute is not None]
    figure = new_figure(6.6, 11.0)
    top, bottom, right, right_bottom = four_axes(figure)
    for run, sweep in swept:
        line = styles[run.name].line() | {"marker": "o", "markersize": 4, "label": run.name}
        points = sweep["self_iterations"]
        allowed = [point["self_iterations"] for point in points]
        top.plot(allowed, column(points, score), **line)
        bottom.plot(allowed, column(points, "relative_residual"), **line)
        points = sweep["tolerance"]
        allowed = [point["tolerance"] for point in points]
        right.plot(allowed, column(points, score), **line)
        used = [point["self_iterations"]["mean"] for point in points]
        right_bottom.plot(allowed, used, **line)
    levels = list(chances)
    for axis in (top, right):
        percent(axis)
        mark_chance(axis, levels, guess)
    bottom.set_xscale("log", base=2)
    ticks(
        bottom,
        sorted({p["self_iterations"] for _, sweep in swept for p in sweep["self_iterations"]}),
    )
    logarithmic(bottom)
    bottom.set_xlabel("self-iterations, the output's included")
    right_bottom.set_xscale("log")
    ticks(
        right_bottom,
        sorted({p["tolerance"] for _, sweep in swept for p in sweep["tolerance"]}),
    )
    right_bottom.invert_xaxis()
    right_bottom.set_ylim(bottom=0)
    right_bottom.set_xlabel("tolerance (stricter to the right)")
    lengths = sorted({sweep["length"] for _, sweep in swept})
    for axis in (top, right):
        set_title(axis, f"{title} {', '.join(map(str, lengths))} tokens")
    set_title(bottom, "Relative residual, worst token")
    set_title(right_bottom, "Self-iterations used, mean")
    legend(figure, top)
    return figure
