"""Figures of formal languages: accuracy by the length of the strings, and by compute."""

import itertools
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from implicit_models.problems.formal_language.report.results import (
    VALIDATION,
    FormalLanguageResults,
)
from implicit_models.reporting.figures.axes import label_ends, mark_chance_along, percent
from implicit_models.reporting.figures.compute import compute_figure
from implicit_models.reporting.figures.style import RunStyle, new_figure, set_title


def accuracy_by_length(
    runs: Sequence[FormalLanguageResults], styles: Mapping[str, RunStyle]
) -> Figure:
    """Draw the accuracy against the length of strings: validation, and the first test."""
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends, chances = {}, []
    test = runs[0].tests[0]
    for run in runs:
        of_split = {split: run.by_length(split) for split in (VALIDATION, test)}
        points = sorted(itertools.chain(*of_split.values()), key=lambda each: each.longest)
        chances.append(
            {
                each.longest: run.chance_of("accuracy", split)
                for split, found in of_split.items()
                for each in found
            }
        )
        lengths = [each.longest for each in points]
        values = [each.accuracy for each in points]
        axis.plot(lengths, values, marker="o", markersize=4, **styles[run.name].line())
        ends[run.name] = (lengths[-1], values[-1])
    axis.set_xlabel("length of the strings, at most")
    axis.set_ylabel("share of right answers")
    percent(axis)
    mark_chance_along(axis, chances)
    label_ends(axis, ends, styles, "{:.1%}")
    what = runs[0].language.replace("_", " ")
    set_title(axis, f"{what.capitalize()}: right answers by length\n(number: the longest strings)")
    return figure


def accuracy_by_compute(
    runs: Sequence[FormalLanguageResults], styles: Mapping[str, RunStyle]
) -> Figure:
    """Draw accuracy against what is allowed at test time; see `compute_figure`."""
    return compute_figure(
        runs,
        styles,
        score="accuracy",
        title="Accuracy, strings of up to",
        chances=[run.chance_of("accuracy", VALIDATION) for run in runs],
    )
