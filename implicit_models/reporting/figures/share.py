"""The figure of how much of a training its bounded phase should have."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from implicit_models.reporting.figures.style import RunStyle, new_figure, set_title
from implicit_models.reporting.results import RunResults


def score_by_bounded_share(
    runs: Sequence[RunResults],
    styles: Mapping[str, RunStyle],
    scores: Mapping[str, float],
    label: str,
) -> Figure:
    """Draw a score of implicit models against the share of their steps in the bounded phase.

    Every run is a point, and the line goes through the means of those of one share.

    Parameters
    ----------
    scores
        The score of each run, by its name.
    label
        What the score is, for its axis.
    """
    found: dict[float, list[float]] = {}
    for run in runs:
        if run.phase_change is not None and run.num_training_steps:
            share = round(run.phase_change / run.num_training_steps, 3)
            found.setdefault(share, []).append(scores[run.name])
    figure = new_figure(4.6)
    axis = figure.subplots()
    shares = sorted(found)
    colour = styles[runs[0].name].colour
    means = [sum(found[share]) / len(found[share]) for share in shares]
    axis.plot(shares, means, color=colour, linewidth=2)
    for share in shares:
        axis.plot([share] * len(found[share]), found[share], "o", color=colour, alpha=0.7)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_xticks(shares)
    axis.set_xlabel("share of the training steps in the bounded phase")
    axis.set_ylabel(label)
    counts = sorted({len(scores) for scores in found.values()})
    runs_of = " or ".join(map(str, counts))
    set_title(axis, f"Bounded phase first, free phase then: {runs_of} seeds a share, and the mean")
    return figure
