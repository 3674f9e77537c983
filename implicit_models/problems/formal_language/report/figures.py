"""Figures of formal languages: accuracy by the length of the strings, and by compute."""

import itertools
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from implicit_models.problems.formal_language.data.languages import ASKING
from implicit_models.problems.formal_language.report.results import (
    VALIDATION,
    FormalLanguageResults,
)
from implicit_models.reporting.figures.axes import (
    label_ends,
    mark_chance_along,
    mark_lengths,
    percent,
    ticks,
)
from implicit_models.reporting.figures.compute import compute_figure
from implicit_models.reporting.figures.style import RunStyle, is_narrow, new_figure, set_title


def accuracy_by_length(
    runs: Sequence[FormalLanguageResults], styles: Mapping[str, RunStyle]
) -> Figure:
    """Draw the accuracy against the length of strings: validation, and the first test.

    A point stands at the longest strings of those that it is of; bars are standard errors.
    """
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    ends, chances, trained = {}, [], set()
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
        learned = max(each.longest for each in of_split[VALIDATION])
        trained.add(min(learned, run.training_length))  # tokens, of which a string has no fewer
        lengths = [each.longest for each in points]
        values = [each.accuracy for each in points]
        line = styles[run.name].line() | {"marker": "o", "markersize": 4, "capsize": 2}
        axis.errorbar(lengths, values, yerr=[each.error for each in points], **line)
        ends[run.name] = (lengths[-1], values[-1])
    axis.set_xscale("log", base=2)
    known = sorted({length for curve in chances for length in curve})
    powers = [2**n for n in range(known[-1].bit_length()) if known[0] <= 2**n]
    ticks(axis, powers[:: 2 if is_narrow() else 1] or known)
    unit = "statements" if runs[0].language in ASKING else "symbols"
    axis.set_xlabel(f"longest strings of the bin ({unit})")
    axis.set_ylabel("share of right answers")
    percent(axis)
    mark_lengths(axis, trained)
    mark_chance_along(axis, chances, "most frequent answer")
    label_ends(axis, ends, styles, "{:.1%}")
    what = runs[0].language.replace("_", " ")
    title = f"{what.capitalize()}: right answers by length (bars: standard error)"
    set_title(axis, f"{title}\n(number: the longest strings)")
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
        guess="most frequent answer",
    )
