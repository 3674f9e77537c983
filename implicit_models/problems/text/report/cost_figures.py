"""Figures of what parameters and operations buy: perplexity against size and against cost."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from implicit_models.problems.text.report.results import TextResults
from implicit_models.reporting.figures.axes import column, label_ends, label_minor, perplexity_scale
from implicit_models.reporting.figures.cost import score_by_cost
from implicit_models.reporting.figures.style import RunStyle, new_figure, set_title, told_apart
from implicit_models.reporting.results import RunResults


def perplexity_by_parameters(runs: Sequence[TextResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the test perplexity against the number of parameters.

    A line goes through models that `alike_but_size` puts together; it has the colour of the
    smallest, and bars are standard errors.
    """
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends, drawn, heights = {}, {}, []
    groups = alike_but_size(runs)
    lines = told_apart(styles[alike[0].name] for alike in groups.values())
    for (label, alike), style in zip(groups.items(), lines, strict=True):
        sizes = [run.num_parameters for run in alike]
        found = [run.evaluation["perplexity"] for run in alike]
        values, errors = column(found, "perplexity"), column(found, "standard_error")
        line = style.line() | {"marker": "o", "markersize": 6, "capsize": 3}
        axis.errorbar(sizes, values, yerr=errors, **line)
        ends[label] = (sizes[-1], values[-1])
        drawn[label] = style
        heights += values
    axis.set_xscale("log")
    label_minor(axis.xaxis)
    axis.set_xlabel("parameters")
    axis.set_ylabel("test perplexity")
    perplexity_scale(axis, heights)
    label_ends(axis, ends, drawn, "{:.4g}")
    set_title(axis, "Perplexity against parameters (bars: standard error)")
    return figure


def perplexity_by_cost(runs: Sequence[TextResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the test perplexity against training FLOPs and against training time."""
    found = column([run.evaluation["perplexity"] for run in runs], "perplexity")
    perplexities = {run.name: each for run, each in zip(runs, found, strict=True)}

    def finish(axis: Axes, _: Sequence[RunResults]) -> None:
        perplexity_scale(axis, perplexities.values())

    return score_by_cost(runs, styles, perplexities, "test perplexity", finish)


def alike_but_size(runs: Sequence[TextResults]) -> dict[str, list[TextResults]]:
    """Group runs of one kind and family that were trained alike, the smallest first.

    They have read as many tokens in training, to two digits, with as many self-iterations allowed.
    Their label has of the two what tells several groups of a kind and family apart.

    >>> alike_but_size([])
    {}
    """
    groups: dict[tuple[str, str, str], list[TextResults]] = {}
    for run in runs:
        what = f"{run.kind} {run.entry.model.family}"
        cap, tokens = run.entry.iteration_cap, run.num_training_tokens
        iterations = "" if cap is None else f", up to {cap} self-iterations"
        read = "" if tokens is None else f", {tokens:.2g} tokens"
        groups.setdefault((what, iterations, read), []).append(run)
    named = {}
    for key, alike in groups.items():
        of_kind = [other for other in groups if other[0] == key[0]]
        telling = [key[i] for i in (1, 2) if len({other[i] for other in of_kind}) > 1]
        named["".join((key[0], *telling))] = sorted(alike, key=lambda run: run.num_parameters)
    return named
