"""Figures of what parameters and operations buy: perplexity against size and against cost."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from implicit_models.problems.text.report.results import TextResults
from implicit_models.reporting.figures.axes import column, label_ends, perplexity_scale
from implicit_models.reporting.figures.cost import score_by_cost
from implicit_models.reporting.figures.style import RunStyle, new_figure, set_title
from implicit_models.reporting.results import RunResults


def perplexity_by_parameters(runs: Sequence[TextResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the test perplexity against the number of parameters.

    A line goes through models of one kind and family that have read as many tokens in training; it
    has the colour of the smallest, and bars are standard errors.
    """
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends, drawn, heights = {}, {}, []
    for label, alike in alike_but_size(runs).items():
        first = alike[0].name
        sizes = [run.num_parameters for run in alike]
        found = [run.evaluation["perplexity"] for run in alike]
        values, errors = column(found, "perplexity"), column(found, "standard_error")
        line = styles[first].line() | {"marker": "o", "markersize": 6, "capsize": 3}
        axis.errorbar(sizes, values, yerr=errors, **line)
        ends[label] = (sizes[-1], values[-1])
        drawn[label] = styles[first]
        heights += values
    axis.set_xscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("parameters")
    axis.set_ylabel("test perplexity")
    perplexity_scale(axis, heights)
    label_ends(axis, ends, drawn, "{:.4g}")
    set_title(axis, "Perplexity against parameters (bars: standard error)")
    return figure


def perplexity_by_cost(runs: Sequence[TextResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the test perplexity against training FLOPs and against training time."""
    perplexities = {run.name: run.evaluation["perplexity"]["perplexity"] for run in runs}

    def finish(axis: Axes, _: Sequence[RunResults]) -> None:
        perplexity_scale(axis, perplexities.values())

    return score_by_cost(runs, styles, perplexities, "test perplexity", finish)


def alike_but_size(runs: Sequence[TextResults]) -> dict[str, list[TextResults]]:
    """Group runs of one kind and family that have read as many tokens, the smallest first.

    >>> alike_but_size([])
    {}
    """
    groups: dict[tuple[str, float | None], list[TextResults]] = {}
    for run in runs:
        what = f"{run.kind} {run.entry.model.family}"
        groups.setdefault((what, run.num_training_tokens), []).append(run)
    labels = [what for what, _ in groups]
    named = {}
    for (what, tokens), alike in groups.items():
        several = labels.count(what) > 1 and tokens is not None
        label = f"{what}, {tokens:.2g} tokens" if several else what
        named[label] = sorted(alike, key=lambda run: run.num_parameters)
    return named
