"""The figure of how much of a training its bounded phase should have, and what it shows."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from implicit_models.reporting.comparison import Candidate
from implicit_models.reporting.figures.axes import label_ends, perplexity_scale
from implicit_models.reporting.figures.style import RunStyle, new_figure, set_title, told_apart
from implicit_models.reporting.lead import listed
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.summary import group_by_seed
from implicit_models.reporting.tables.table import percent, perplexity


def perplexity_by_bounded_share(
    runs: Sequence[RunResults], styles: Mapping[str, RunStyle]
) -> Figure:
    """Draw the test perplexity against the share of the steps in the bounded phase.

    Every run that has such a phase is a point. A line goes through the means of the runs of one
    model, a share each. Of each other model a level line is the mean of its seeds. Runs whose
    perplexity is not known are left out.
    """
    figure = new_figure(4.6, 5.4)
    axis = figure.subplots()
    known = {run.name: run for run in runs if run.test_perplexity is not None}
    models, others = by_share(list(known.values())), _others(list(known.values()))
    shown = [*models, *others]
    lines = dict(zip(shown, told_apart(styles[name] for name in shown), strict=True))
    shares = sorted({share for found in models.values() for share in found})
    right = shares[-1] if shares else 1.0
    ends = {name: (right, mean) for name, mean in others.items()}
    for name, found in models.items():
        means = [fmean(found[share]) for share in sorted(found)]
        axis.plot(sorted(found), means, **lines[name].line())
        for share, values in found.items():
            dots = [share] * len(values)
            axis.plot(dots, values, "o", color=lines[name].colour, alpha=0.7)
        ends[name] = (max(found), means[-1])
    for name, mean in others.items():
        axis.axhline(mean, **lines[name].line(1.4))
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.set_xticks(shares)
    axis.set_xlabel("share of the training steps in the bounded phase")
    axis.set_ylabel("test perplexity")
    perplexity_scale(axis, [run.test_perplexity or 0.0 for run in known.values()])
    label_ends(axis, ends, lines, "{:.4g}")
    set_title(axis, "Bounded phase first, then the free one (points: seeds; level: other models)")
    return figure


def share_sentences(runs: Sequence[RunResults]) -> list[str]:
    """Return for each model whether its bounded shares differ by more than its seeds do."""
    return [
        _compared(name, [_candidate(share, found[share]) for share in sorted(found)])
        for name, found in by_share(runs).items()
        if len(found) > 1
    ]


def by_share(runs: Sequence[RunResults]) -> dict[str, dict[float, list[float]]]:
    """Return the test perplexities of each model, by the share of its steps in the bounded phase.

    Models are under the names of their first runs; they differ in their sections ``model``, or in
    the self-iterations that they are allowed in the free phase. Runs without two phases are left
    out, and those whose perplexity is not known.
    """
    models: dict[str, dict[float, list[float]]] = {}
    for run in runs:
        score, change, steps = run.test_perplexity, run.phase_change, run.num_training_steps
        if score is not None and change is not None and steps:
            share = round(change / steps, 3)
            first = next(each.name for each in runs if _model_of(each) == _model_of(run))
            models.setdefault(first, {}).setdefault(share, []).append(score)
    return models


def _model_of(run: RunResults) -> tuple[Any, int | None]:
    return run.entry.model, run.entry.iteration_cap


def _others(runs: Sequence[RunResults]) -> dict[str, float]:
    alone = [run for run in runs if run.phase_change is None]
    return {
        name: fmean(run.test_perplexity or 0.0 for run in group)
        for name, group in group_by_seed(alone).items()
    }


def _candidate(share: float, values: Sequence[float]) -> Candidate:
    return Candidate(name=percent(share, 0), kind="implicit", runs=[], values=values)


def _compared(name: str, shares: Sequence[Candidate]) -> str:
    best = min(shares, key=lambda each: each.mean)
    others = [each for each in shares if each is not best]
    told = f"{name}: perplexity is lowest with {best.name} of the steps bounded"
    values = ", ".join(f"{each.name} {each.written(perplexity)}" for each in shares)
    if any(len(each.values) == 1 for each in shares):
        return f"{told} ({values}); with one seed of a share it may be the seed."
    level = [each.name for each in others if each.is_level_with(best)]
    behind = [each.name for each in others if each.name not in level]
    verdicts = [
        *([f"{listed(behind)} worse by more than seeds differ"] if behind else []),
        *([f"{listed(level)} within what seeds differ"] if level else []),
    ]
    return f"{told} ({values}); {' and '.join(verdicts)} (95 % intervals by the seeds)."
