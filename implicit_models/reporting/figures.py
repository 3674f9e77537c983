"""Figures: from results to matplotlib figures, for the report and the notebook alike.

Draw them inside ``theme(...)``. A run has one colour and one dash in all of them: see `run_styles`.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, StrMethodFormatter

from implicit_models.reporting.results import RunResults
from implicit_models.reporting.summary import group_by_seed

# Told apart by colour-blind readers too, and legible on white and on near-black.
COLOURS = ("#2f7ed8", "#d9731a", "#1f9d6b", "#c2559d", "#8a6fd1", "#b08a00", "#d14b4b", "#3aa6b9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))

_INK = {
    "light": {"ink": "#1f2328", "faint": "#8a9099", "grid": "#e4e7eb", "paper": "#ffffff"},
    "dark": {"ink": "#e6e9ee", "faint": "#8b939e", "grid": "#333a44", "paper": "#171b21"},
}


@dataclass(frozen=True, kw_only=True)
class RunStyle:
    """How a run is drawn: runs that differ in the seed only share the colour, not the dash."""

    colour: str
    dash: Any

    def line(self, width: float = 2.0) -> dict[str, Any]:
        """Give the arguments of a line."""
        return {"color": self.colour, "linestyle": self.dash, "linewidth": width}


@contextlib.contextmanager
def theme(name: str = "light") -> Iterator[None]:
    """Draw on white (``"light"``) or on near-black (``"dark"``)."""
    ink = _INK[name]
    settings: dict[Any, Any] = {
        "figure.facecolor": ink["paper"],
        "axes.facecolor": ink["paper"],
        "savefig.facecolor": ink["paper"],
        "text.color": ink["ink"],
        "axes.labelcolor": ink["ink"],
        "axes.edgecolor": ink["faint"],
        "xtick.color": ink["faint"],
        "ytick.color": ink["faint"],
        "xtick.labelcolor": ink["ink"],
        "ytick.labelcolor": ink["ink"],
        "grid.color": ink["grid"],
        "lines.color": ink["faint"],
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.labelsize": 11,
        "font.size": 11,
        "xtick.labelsize": 10,
        "ytick.labelsize": 10,
        "legend.frameon": False,
        "legend.fontsize": 10,
        "figure.constrained_layout.use": True,
    }
    with mpl.rc_context(settings):
        yield


def run_styles(runs: Sequence[RunResults]) -> dict[str, RunStyle]:
    """Give each run its style: by position in params.yaml, so the same in every figure."""
    return {
        run.name: RunStyle(colour=colour, dash=dash)
        for group, colour in zip(
            group_by_seed(runs).values(), itertools.cycle(COLOURS), strict=False
        )
        for run, dash in zip(group, itertools.cycle(DASHES), strict=False)
    }


def training_curves(runs: Sequence[RunResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw loss, accuracy and self-iterations against training steps, the phase change marked."""
    panels = (
        ("loss", "Training loss (nats)"),
        ("accuracy", "Training accuracy, all positions"),
        ("self_iterations", "Self-iterations per sequence, the one that gives the output included"),
    )
    figure = Figure(figsize=(8.5, 8.5))
    axes = figure.subplots(3, 1, sharex=True)
    for (metric, title), axis in zip(panels, axes, strict=True):
        for run in runs:
            if metric in run.history:
                series = run.history[metric]
                line = styles[run.name].line(1.4)
                axis.plot(series.steps, series.values, label=run.name, **line)
        for run in runs:
            if run.phase_change is not None:
                axis.axvline(
                    run.phase_change, color=styles[run.name].colour, linestyle=":", linewidth=1.5
                )
        axis.set_title(title)
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    _percent(axes[1])
    axes[2].set_ylim(0, 1.25 * axes[2].get_ylim()[1])
    axes[2].set_xlabel("training step (optimiser steps, both phases)")
    changes = sorted({run.phase_change for run in runs if run.phase_change is not None})
    if changes:
        axes[2].annotate(
            f" free phase begins at step {', '.join(map(str, changes))}",
            (changes[-1], 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, -4),
            textcoords="offset points",
            va="top",
            color=mpl.rcParams["text.color"],
            fontsize=10,
        )
    _legend(figure, axes[0])
    return figure


def accuracy_by_length(runs: Sequence[RunResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the accuracy of the last 10 tokens against the length of the sequence."""
    figure = Figure(figsize=(8.5, 4.6))
    axis = figure.subplots()
    ends = {}
    for run in runs:
        values = [_accuracy_at_the_end(run, length) for length in run.lengths]
        axis.plot(run.lengths, values, marker="o", markersize=5, **styles[run.name].line())
        ends[run.name] = (run.lengths[-1], values[-1])
    lengths = sorted({length for run in runs for length in run.lengths})
    axis.set_xscale("log", base=2)
    _ticks(axis, lengths)
    axis.set_xlabel("length of the test sequences (tokens)")
    axis.set_ylabel("accuracy, last 10 tokens")
    _percent(axis)
    _mark_training_lengths(axis, runs)
    _mark_chance(axis, runs)
    _label_ends(axis, ends, styles)
    axis.set_title(_length_title(runs))
    return figure


def accuracy_by_position(runs: Sequence[RunResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw the accuracy at each position of the longest sequences."""
    figure = Figure(figsize=(8.5, 4.6))
    axis = figure.subplots()
    ends = {}
    lengths = sorted({run.lengths[-1] for run in runs})
    for run in runs:
        values = run.by_position[run.lengths[-1]]
        line = styles[run.name].line(1.6)
        axis.plot(np.arange(1, len(values) + 1), values, **line)
        ends[run.name] = (len(values), _accuracy_at_the_end(run, run.lengths[-1]))
    axis.set_xlim(1, lengths[-1])
    axis.set_xlabel("position in the sequence (tokens)")
    axis.set_ylabel("accuracy at this position")
    _percent(axis)
    _mark_training_lengths(axis, runs)
    _mark_chance(axis, runs)
    _label_ends(axis, ends, styles)
    axis.set_title(
        f"Where in sequences of {' or '.join(map(str, lengths))} tokens each run loses track\n"
        "(number: mean of the last 10 positions)"
    )
    return figure


def accuracy_by_compute(runs: Sequence[RunResults], styles: Mapping[str, RunStyle]) -> Figure:
    """Draw accuracy and residual against self-iterations, accuracy and iterations by tolerance."""
    swept = [(run, run.test_time_compute) for run in runs if run.test_time_compute is not None]
    figure = Figure(figsize=(8.5, 6.6))
    (top, right), (bottom, right_bottom) = figure.subplots(2, 2, sharex="col")
    for run, sweep in swept:
        line = styles[run.name].line() | {"marker": "o", "markersize": 4, "label": run.name}
        points = sweep["self_iterations"]
        allowed = [point["self_iterations"] for point in points]
        top.plot(allowed, _column(points, "accuracy_last_10"), **line)
        bottom.plot(allowed, _column(points, "relative_residual"), **line)
        points = sweep["tolerance"]
        allowed = [point["tolerance"] for point in points]
        right.plot(allowed, _column(points, "accuracy_last_10"), **line)
        used = [point["self_iterations"]["mean"] for point in points]
        right_bottom.plot(allowed, used, **line)
    for axis in (top, right):
        _percent(axis)
        _mark_chance(axis, [run for run, _ in swept])
    bottom.set_xscale("log", base=2)
    _ticks(
        bottom,
        sorted({p["self_iterations"] for _, sweep in swept for p in sweep["self_iterations"]}),
    )
    bottom.set_yscale("log")
    bottom.set_xlabel("self-iterations, the output's included")
    right_bottom.set_xscale("log")
    _ticks(
        right_bottom,
        sorted({p["tolerance"] for _, sweep in swept for p in sweep["tolerance"]}),
    )
    right_bottom.invert_xaxis()
    right_bottom.set_ylim(bottom=0)
    right_bottom.set_xlabel("tolerance (stricter to the right)")
    lengths = sorted({sweep["length"] for _, sweep in swept})
    for axis in (top, right):
        axis.set_title(f"Accuracy, last 10 of {', '.join(map(str, lengths))} tokens")
    bottom.set_title("Relative residual, worst token")
    right_bottom.set_title("Self-iterations used, mean")
    _legend(figure, top)
    return figure


def residual_front(residuals: Float[np.ndarray, "S L"], tolerance: float) -> Figure:
    """Draw the residual of each token at each self-iteration of a search, and where it settles.

    The line is each token's first self-iteration from which its residual stays below the
    tolerance: the converged front. Tokens that a window has not reached yet (NaN) stay blank.
    """
    num_steps, length = residuals.shape
    figure = Figure(figsize=(8.5, 4.8))
    axis = figure.subplots()
    axis.grid(False)
    floor = max(float(np.min(residuals[residuals > 0], initial=1.0)), tolerance * 1e-2)
    picture = axis.imshow(
        np.log10(np.clip(residuals, floor, 1.0)),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap="viridis",
        extent=(0.5, length + 0.5, 0.5, num_steps + 0.5),
    )
    front = settled_steps(residuals, tolerance)
    axis.step(
        np.arange(1, length + 1), front, where="mid", color="#ffffff", linewidth=3.2, alpha=0.55
    )
    axis.step(np.arange(1, length + 1), front, where="mid", color="#e0312f", linewidth=1.8)
    axis.set_xlabel("token")
    axis.set_ylabel("self-iteration of the search")
    bar = figure.colorbar(picture, ax=axis, pad=0.02)
    bar.set_label("relative residual")
    bar.outline.set_visible(False)
    low = int(np.ceil(np.log10(floor)))
    bar.set_ticks(range(low, 1), labels=[f"{10.0**power:g}" for power in range(low, 1)])
    settled = np.isfinite(front)
    if settled.all():
        title = (
            f"The converged front (red) moves through all {length} tokens "
            f"in {int(front.max())} self-iterations"
        )
    else:
        title = f"{int(settled.sum())} of {length} tokens settle below {tolerance:g} (red)"
    axis.set_title(title)
    return figure


def settled_steps(residuals: Float[np.ndarray, "S L"], tolerance: float) -> Float[np.ndarray, " L"]:
    """Give each token's first self-iteration (from 1) from which its residual stays below.

    NaN for a token that is not below the tolerance at the end.
    """
    above = ~(residuals < tolerance)
    last_above = np.where(above.any(0), len(above) - np.argmax(above[::-1], axis=0), 0)
    return np.where(last_above == len(above), np.nan, last_above + 1.0)


def _length_title(runs: Sequence[RunResults]) -> str:
    """Say what is seen at the longest length: the best of each kind that was evaluated there."""
    longest = max(run.lengths[-1] for run in runs)
    seen = [run for run in runs if longest in run.lengths]
    parts = []
    for kind in ("implicit", "explicit"):
        accuracies = [_accuracy_at_the_end(run, longest) for run in seen if run.kind == kind]
        if accuracies:
            parts.append(f"the best {kind} run reads {max(accuracies):.1%}")
    ratios = [f"{ratio:.3g}" for ratio in sorted({longest / run.training_length for run in seen})]
    ratio = " to ".join(dict.fromkeys((ratios[0], ratios[-1])))
    return f"At {longest} tokens, {ratio}x the training length,\n{', '.join(parts)}"


def _accuracy_at_the_end(run: RunResults, length: int) -> float:
    return run.evaluation["accuracy_last_10"][str(length)]


def _column(points: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [np.nan if point[name] is None else point[name] for point in points]


def _percent(axis: Axes) -> None:
    axis.set_ylim(-0.02, 1.04)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _ticks(axis: Axes, values: Sequence[float]) -> None:
    axis.xaxis.set_major_locator(FixedLocator(list(values)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _mark_training_lengths(axis: Axes, runs: Sequence[RunResults]) -> None:
    for length in sorted({run.training_length for run in runs}):
        axis.axvline(length, color=mpl.rcParams["lines.color"], linestyle=":", linewidth=1.5)
        axis.annotate(
            f"trained up to {length}",
            (length, 0.5),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            rotation=90,
            va="center",
            fontsize=10,
            bbox=_backing(),
        )


def _mark_chance(axis: Axes, runs: Sequence[RunResults]) -> None:
    """Draw one line per dataset."""
    levels = {run.dataset: run.evaluation["chance"] for run in runs}
    for level in sorted(set(levels.values())):
        axis.axhline(level, color=mpl.rcParams["lines.color"], linestyle="--", linewidth=1.2)
        axis.annotate(
            f"chance {level:.1%}",
            (0.01, level),
            xycoords=("axes fraction", "data"),
            xytext=(0, 6),
            textcoords="offset points",
            fontsize=10,
            bbox=_backing(),
        )


def _backing() -> dict[str, Any]:
    """Let a label stand on the ground's colour where lines pass behind it."""
    ground = mpl.rcParams["axes.facecolor"]
    return {"facecolor": ground, "edgecolor": "none", "alpha": 0.85, "pad": 1.0}


def _label_ends(
    axis: Axes, ends: Mapping[str, tuple[float, float]], styles: Mapping[str, RunStyle]
) -> None:
    """Write each run's name where its line ends, names pushed apart to stay legible."""
    low, high = axis.get_ylim()
    spacing = 0.062 * (high - low)
    heights = spread([value for _, value in ends.values()], spacing, low + spacing / 2, high)
    for (name, (right, value)), height in zip(ends.items(), heights, strict=True):
        axis.annotate(
            f"{name}  {value:.1%}",
            (right, value),
            xytext=(1.03, height),
            textcoords=axis.get_yaxis_transform(),
            va="center",
            color=styles[name].colour,
            fontsize=10,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": styles[name].colour,
                "linewidth": 0.8,
                "relpos": (0.0, 0.5),
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )


def spread(values: Sequence[float], spacing: float, low: float, high: float) -> list[float]:
    """Move values apart to at least ``spacing`` within bounds, keeping their order.

    Where they do not all fit, they are spaced evenly.
    """
    if not values:
        return []
    spacing = min(spacing, (high - low) / max(1, len(values) - 1))
    order = sorted(range(len(values)), key=lambda index: values[index])
    placed = [0.0] * len(values)
    floor = low
    for rank, index in enumerate(order):
        room_above = spacing * (len(values) - 1 - rank)
        placed[index] = min(max(values[index], floor), high - room_above)
        floor = placed[index] + spacing
    return placed


def _legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        columns = min(3, len(handles))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
