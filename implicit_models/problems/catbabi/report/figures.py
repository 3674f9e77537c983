"""Figures of catbAbI: accuracy by task, by layers and by distance."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from implicit_models.problems.catbabi.report.bars import bar_figure, draw_bars, name_rows
from implicit_models.problems.catbabi.report.comparing import (
    family_of,
    layers_known,
    layers_of,
    models_of,
    of_task,
    part_of,
    shown_by_task,
    tasks_of,
)
from implicit_models.problems.catbabi.report.results import CatbabiResults, distances_of
from implicit_models.problems.catbabi.tasks import numbered
from implicit_models.reporting.comparison import Candidate
from implicit_models.reporting.figures.axes import label_ends, legend, mark_chance, percent, ticks
from implicit_models.reporting.figures.style import (
    RunStyle,
    new_figure,
    set_title,
    wrapped,
)

_MARKERS = {"implicit": "o", "explicit": "s", "recurrent": "^"}


def accuracy_by_task(runs: Sequence[CatbabiResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw a bar for each task and model: the best implicit one beside the explicit one."""
    models, tasks = shown_by_task(runs), tasks_of(runs)
    figure, axis = bar_figure(len(tasks), len(models))
    for place, model in enumerate(models):
        found = [of_task(model, task) for task in tasks]
        bars = draw_bars(
            axis,
            [np.nan if each is None else each.mean for each in found],
            (place, len(models)),
            model,
            styles,
        )
        middles = [bar.get_y() + bar.get_height() / 2 for bar in bars]
        for each, middle in zip(found, middles, strict=True):
            if each is not None:
                low, high = max(each.mean - each.margin, 0), min(each.mean + each.margin, 1)
                axis.plot([low, high], [middle, middle], color=mpl.rcParams["text.color"], lw=1)
    name_rows(axis, [numbered(task) for task in tasks])
    axis.set_xlim(0, 1.02)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_xlabel("questions answered right")
    set_title(axis, "Accuracy by task")
    legend(figure, axis)
    return figure


def accuracy_by_layers(runs: Sequence[CatbabiResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the accuracy over all questions against the layers, a line for each kind of model.

    The line runs through the best model of each number of layers; the others are points.
    """
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends, of_lines = {}, {}
    for name, models in _lines(runs).items():
        best = {model_layers(model): model for model in sorted(models, key=lambda m: m.mean)}
        top = [best[layers] for layers in sorted(best)]
        style = styles[max(models, key=lambda model: model.mean).name]
        dots: dict[str, Any] = {"color": style.colour, "marker": _MARKERS[models[0].kind]}
        axis.plot(
            [model_layers(model) for model in top],
            [model.mean for model in top],
            color=style.colour,
            linewidth=2.0,
        )
        axis.errorbar(
            [model_layers(model) for model in models],
            [model.mean for model in models],
            yerr=[model.margin for model in models],
            linestyle="",
            markersize=6,
            capsize=3,
            **dots,
        )
        of_lines[name] = RunStyle(colour=style.colour, dash="-")
        ends[name] = (model_layers(top[-1]), top[-1].mean)
    axis.set_xscale("log", base=2)
    ticks(axis, layers_known(runs))
    axis.set_xlabel("layers of the model")
    _finish(axis, runs)
    label_ends(axis, ends, of_lines, "{:.1%}")
    set_title(axis, "Accuracy against layers (bars: 95 % intervals)")
    return figure


def accuracy_by_distance(runs: Sequence[CatbabiResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the accuracy against the lines back to the furthest supporting fact."""
    distances = distances_of(runs)
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends = {}
    for model in models_of(runs):
        found = {
            place: part
            for place, distance in enumerate(distances)
            if (part := part_of(model, lambda run, at=distance: run.by_distance.get(at)))
        }
        if not found:
            continue
        axis.errorbar(
            list(found),
            [part.mean for part in found.values()],
            yerr=[part.margin for part in found.values()],
            capsize=3,
            marker=_MARKERS[model.kind],
            **styles[model.name].line(),
        )
        last = max(found)
        ends[model.name] = (last, found[last].mean)
    axis.set_xticks(range(len(distances)), distances)
    axis.set_xlim(-0.2, len(distances) - 0.8)
    axis.set_xlabel(wrapped("lines from the question back to the furthest supporting fact"))
    _finish(axis, runs)
    label_ends(axis, ends, styles, "{:.1%}")
    set_title(axis, "Accuracy by distance (bars: 95 % intervals)")
    return figure


def model_layers(model: Candidate) -> int:
    """Return the layers of a model of which they are known."""
    layers = layers_of(model)
    assert layers is not None
    return layers


def _lines(runs: Sequence[CatbabiResults]) -> dict[str, list[Candidate]]:
    """Return the models of each kind whose layers are known, with the family where it differs."""
    models = [model for model in models_of(runs) if layers_of(model) is not None]
    kinds = {(model.kind, family_of(model)) for model in models}
    found: dict[str, list[Candidate]] = {}
    for model in models:
        is_one = sum(kind == model.kind for kind, _ in kinds) == 1
        name = model.kind if is_one else f"{model.kind} {family_of(model)}"
        found.setdefault(name, []).append(model)
    return {name: sorted(of, key=model_layers) for name, of in found.items()}


def _finish(axis: Axes, runs: Sequence[CatbabiResults]) -> None:
    """Set the scale of accuracies, and mark what the most frequent answers would get."""
    axis.set_ylabel("questions answered right")
    percent(axis)
    mark_chance(axis, [run.chance_of("accuracy") for run in runs], "most frequent answers")
