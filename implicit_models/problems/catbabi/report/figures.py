"""Figures of catbAbI: accuracy by task, by layers and by distance."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from implicit_models.problems.catbabi.report.bars import name_rows
from implicit_models.problems.catbabi.report.comparing import (
    family_of,
    layers_known,
    layers_of,
    models_of,
    of_task,
    part_of,
    tasks_of,
)
from implicit_models.problems.catbabi.report.results import CatbabiResults, distances_of
from implicit_models.problems.catbabi.tasks import numbered
from implicit_models.reporting.comparison import Candidate
from implicit_models.reporting.figures.axes import label_ends, legend, mark_chance, percent, ticks
from implicit_models.reporting.figures.style import (
    RunStyle,
    is_narrow,
    new_figure,
    set_title,
    told_apart,
    wrapped,
)
from implicit_models.reporting.matching import MATCHED_IN

_MARKERS = {"implicit": "o", "explicit": "s", "recurrent": "^"}
_FILLS = ("full", "none", "left", "top")  # of models with one colour and marker, in turn
_ROW, _MODEL, _MARGIN = 0.32, 0.05, 1.7  # inches: a task, a model in it, and what is around them


def accuracy_by_task(runs: Sequence[CatbabiResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the accuracy of every model on each task, in rows, with its seeds as faint dots.

    Of a model with one seed a thin line is the 95 % interval by the test questions.
    """
    models, tasks = models_of(runs), tasks_of(runs)
    figure = new_figure(_MARGIN + max(_ROW, _MODEL * len(models)) * len(tasks))
    axis = figure.subplots()
    drawn: collections.Counter[tuple[str, str]] = collections.Counter()
    for place, model in enumerate(models):
        shift = 0.7 * ((place + 0.5) / len(models) - 0.5)
        rows = {
            row + shift: each for row, task in enumerate(tasks) if (each := of_task(model, task))
        }
        look: dict[str, Any] = {"color": styles[model.name].colour, "linestyle": ""}
        for height, each in rows.items():
            if len(each.values) > 1:
                seeds = [height] * len(each.values)
                axis.plot(each.values, seeds, marker=".", markersize=5, alpha=0.4, **look)
            else:
                ends = max(each.mean - each.margin, 0), min(each.mean + each.margin, 1)
                axis.plot(ends, [height] * 2, color=look["color"], linewidth=1)
        label = model.name
        if len(model.values) > 1:
            label += f" (mean of {len(model.values)} seeds)"
        alike = styles[model.name].colour, model.kind
        look |= {"marker": _MARKERS[model.kind], "markersize": 5, "label": label}
        look["fillstyle"] = _FILLS[drawn[alike] % len(_FILLS)]
        drawn[alike] += 1
        axis.plot([each.mean for each in rows.values()], list(rows), **look)
    name_rows(axis, [numbered(task) for task in tasks])
    axis.set_xlim(-0.02, 1.02)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_xlabel("questions answered right")
    set_title(axis, "Accuracy by task" + ("" if is_narrow() else _told_by(models)))
    legend(figure, axis)
    return figure


def _told_by(models: Sequence[Candidate]) -> str:
    """Return what stands beside the markers of `accuracy_by_task`, for its title."""
    counts = {len(model.values) for model in models}
    has_seeds = max(counts, default=1) > 1
    dots = " (faint dots: seeds" if has_seeds else ""
    if 1 not in counts:
        return f"{dots})" if dots else ""
    of = " of single seeds" if has_seeds else ""
    start = f"{dots};\n" if dots else "\n("
    return f"{start}lines: 95 % intervals{of}, by the questions)"


def accuracy_by_layers(runs: Sequence[CatbabiResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the accuracy over all questions against the layers, a line for each kind of model.

    Families, and models that are matched to another, have lines of their own. A line runs through
    the best model of each number of layers; the others are points.
    """
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends, of_lines = {}, {}
    lines = _lines(runs)
    best_of = [styles[max(models, key=lambda model: model.mean).name] for models in lines.values()]
    for (name, models), style in zip(lines.items(), told_apart(best_of), strict=True):
        best = {model_layers(model): model for model in sorted(models, key=lambda m: m.mean)}
        top = [best[layers] for layers in sorted(best)]
        dots: dict[str, Any] = {"color": style.colour, "marker": _MARKERS[models[0].kind]}
        axis.plot(
            [model_layers(model) for model in top],
            [model.mean for model in top],
            **style.line(),
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
        of_lines[name] = style
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
    """Return the models of each kind whose layers are known, with the family where it differs.

    Those that were matched to a run are apart: they were trained for longer, or are larger.
    """
    models = [model for model in models_of(runs) if layers_of(model) is not None]
    kinds = {(model.kind, family_of(model)) for model in models}
    found: dict[str, list[Candidate]] = {}
    for model in models:
        is_one = sum(kind == model.kind for kind, _ in kinds) == 1
        name = model.kind if is_one else f"{model.kind} {family_of(model)}"
        if (matched := model.runs[0].entry.matched_to) is not None:
            name += f", {MATCHED_IN[matched[1]]} of a run"
        found.setdefault(name, []).append(model)
    return {name: sorted(of, key=model_layers) for name, of in found.items()}


def _finish(axis: Axes, runs: Sequence[CatbabiResults]) -> None:
    """Set the scale of accuracies, and mark what the most frequent answers would get."""
    axis.set_ylabel("questions answered right")
    percent(axis)
    mark_chance(axis, [run.chance_of("accuracy") for run in runs], "most frequent answers")
