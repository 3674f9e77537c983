"""Figures of catbAbI: where models need many self-iterations and where few."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from implicit_models.problems.catbabi.report.bars import bar_figure, draw_bars, name_rows
from implicit_models.problems.catbabi.report.comparing import (
    iterations_of,
    models_of,
    runs_of,
    words_of,
)
from implicit_models.problems.catbabi.report.results import CatbabiResults
from implicit_models.problems.catbabi.tasks import numbered
from implicit_models.reporting.comparison import Candidate
from implicit_models.reporting.figures.axes import legend
from implicit_models.reporting.figures.compute import compute_figure
from implicit_models.reporting.figures.style import RunStyle, is_narrow, new_figure, set_title

NUM_WORDS, FEWEST_TOKENS = 12, 50
"""How many words are shown of those with the most and with the least self-iterations, and how
often a word has to occur."""


def accuracy_by_compute(runs: Sequence[CatbabiResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw accuracy against what is allowed at test time; see `compute_figure`."""
    return compute_figure(
        runs,
        styles,
        score="accuracy",
        title="Right answers, stories cut to",
        chances=[run.chance_of("accuracy") for run in runs],
        guess="most frequent answers",
    )


def self_iterations_by_task(
    runs: Sequence[CatbabiResults], styles: Mapping[str, RunStyle]
) -> Figure:
    """Draw the mean self-iterations of a token for each task and implicit model."""
    models = [model for model in models_of(runs) if _has_tasks(model)]
    tasks = sorted({task for run in runs for task in run.iterations_by_task})
    figure, axis = bar_figure(len(tasks), len(models))
    for place, model in enumerate(models):
        found = [iterations_of(model, task) for task in tasks]
        values = [np.nan if mean is None else mean for mean in found]
        draw_bars(axis, values, (place, len(models)), model, styles)
    name_rows(axis, [numbered(task) for task in tasks])
    axis.set_xlim(left=0)
    axis.set_xlabel("self-iterations per token, mean")
    set_title(axis, "Self-iterations by task")
    legend(figure, axis)
    return figure


def self_iterations_by_word(
    runs: Sequence[CatbabiResults], styles: Mapping[str, RunStyle]
) -> Figure:
    """Draw the words with the most and with the least self-iterations of the best model."""
    model = model_of_words(runs)
    figure = new_figure(4.6, 7.6)
    if model is None:
        return figure
    most, least = most_and_least(model)
    left, right = figure.subplots(*((2, 1) if is_narrow() else (1, 2)), sharex=True)
    for axis, words, title in (
        (left, most, "Words with the most self-iterations"),
        (right, least, "With the fewest"),
    ):
        _draw_words(axis, words, model, styles)
        set_title(axis, title)
    axes = (right,) if is_narrow() else (left, right)
    for axis in axes:
        axis.set_xlabel("self-iterations, mean")
    left.set_xlim(0, 1.12 * max([*most.values(), *least.values()], default=1.0))
    return figure


def model_of_words(runs: Sequence[CatbabiResults]) -> Candidate | None:
    """Return the most accurate model of which the self-iterations by word are known."""
    known = [model for model in models_of(runs) if words_of(model, FEWEST_TOKENS)]
    return max(known, key=lambda model: model.mean, default=None)


def most_and_least(model: Candidate) -> tuple[dict[str, float], dict[str, float]]:
    """Return the words with the most self-iterations, and those with the fewest, no word twice."""
    words = list(words_of(model, FEWEST_TOKENS).items())
    most = words[: min(NUM_WORDS, (len(words) + 1) // 2)]
    rest = words[len(most) :]
    return dict(most), dict(rest[-NUM_WORDS:][::-1])


def _draw_words(
    axis: Axes, words: Mapping[str, float], model: Candidate, styles: Mapping[str, RunStyle]
) -> None:
    bars = draw_bars(axis, list(words.values()), (0, 1), model, styles)
    axis.bar_label(bars, [f"{mean:.3g}" for mean in words.values()], padding=3, fontsize=10)
    name_rows(axis, list(words))


def _has_tasks(model: Candidate) -> bool:
    return any(run.iterations_by_task for run in runs_of(model))
