"""What the axes of several figures share: scales, marks and labels."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import (
    FixedLocator,
    LogFormatter,
    LogFormatterSciNotation,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
    StrMethodFormatter,
)

from implicit_models.reporting.figures.style import ABOVE, NARROW, RunStyle, is_narrow
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.training_notes import iteration_cap

_NARROWEST = 0.35  # powers of ten, below which a logarithmic axis has the ticks of a linear one
_BETWEEN = {0.7: (2, 3, 5, 7), 1: (2, 5), 2: (3,)}
"""Which ticks between powers of ten there is room for, by how many powers an axis has at most."""
_LEVEL = "_level"  # what marks a text that says what a level line is
_NARROW_LABEL = 10  # characters
_ROWS = 12  # of a legend, for which narrow figures have room
_ROW_HEIGHT = 0.24  # inches


def column(points: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return one value of each point; NaN where there is none."""
    return [np.nan if point[name] is None else point[name] for point in points]


def percent(axis: Axes) -> None:
    """Set an axis to range from 0 to 100 %."""
    axis.set_ylim(-0.02, 1.04)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def ticks(axis: Axes, values: Sequence[float]) -> None:
    """Mark these values and no others along the bottom."""
    axis.xaxis.set_major_locator(FixedLocator(list(values)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def label_minor(axis: Axis, formatter: type[LogFormatter] = LogFormatterSciNotation) -> None:
    """Label ticks between the powers of ten of a logarithmic axis that has few of these.

    Call it once all is drawn.
    """
    low, high = axis.get_view_interval()
    decades = abs(float(np.log10(high / low)))
    if decades < _NARROWEST:
        axis.set_major_locator(MaxNLocator(3))
        digits = max(3, 2 - int(np.floor(np.log10(high / low - 1))))
        axis.set_major_formatter(StrMethodFormatter(f"{{x:.{digits}g}}"))
        axis.set_minor_locator(NullLocator())
        return
    between = next((subs for most, subs in _BETWEEN.items() if decades <= most), None)
    if between is None:
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_minor_locator(LogLocator(subs=between))
        axis.set_minor_formatter(formatter(minor_thresholds=(np.inf, np.inf)))


def logarithmic(axis: Axes) -> None:
    """Make the heights of an axis logarithmic, where it has one that can be."""
    heights = (height for line in axis.lines for height in np.atleast_1d(line.get_ydata()))
    if any(height > 0 for height in heights):
        axis.set_yscale("log")


def perplexity_scale(axis: Axes, values: Iterable[float]) -> None:
    """Make an axis of perplexities logarithmic where they lie far apart, with plain ticks."""
    known = [value for value in values if np.isfinite(value)]
    if known and max(known) > 4 * min(known):
        axis.set_yscale("log")
        axis.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def mark_training_lengths(axis: Axes, runs: Sequence[RunResults]) -> None:
    """Draw a line where the longest sequence of a training ends."""
    mark_lengths(axis, {run.training_length for run in runs})


def mark_lengths(axis: Axes, lengths: Iterable[int]) -> None:
    """Draw a line at each length up to which models were trained, and tell above the axis.

    The title of the axis is to be set after it: it stands above that.
    """
    ordered = sorted(set(lengths))
    for length in ordered:
        is_last = length == ordered[-1]
        alignment = ("center" if len(ordered) == 1 else "left") if is_last else "right"
        text = f"trained up to {length}" if is_last else f"{length}"
        axis.axvline(length, color=mpl.rcParams["lines.color"], linestyle=":", linewidth=1.5)
        axis.annotate(
            text,
            (length, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=({"right": -2, "center": 0, "left": 2}[alignment], 4),
            textcoords="offset points",
            ha=alignment,
            fontsize=10,
            label=ABOVE,
            annotation_clip=False,
        )


def mark_caps(axis: Axes, runs: Sequence[RunResults]) -> None:
    """Draw a line at the most self-iterations that training allows, where a curve comes to it."""
    for cap in sorted({cap for run in runs if (cap := iteration_cap(run)) is not None}):
        axis.axhline(cap, **_level_line())
        axis.annotate(
            f"{cap}: the most allowed",
            (0.99, cap),
            xycoords=("axes fraction", "data"),
            xytext=(0, 6),
            textcoords="offset points",
            ha="right",
            fontsize=10,
        )


def mark_chance(axis: Axes, levels: Iterable[float | None], name: str = "chance") -> None:
    """Draw a line at what chance has, or another guess of that name; none where it is not known.

    What it is stands right of the axis.
    """
    for level in sorted({level for level in levels if level is not None}):
        axis.axhline(level, **_level_line())
        _label_level(axis, level, f"{name} {level:.1%}")


def mark_chance_along(
    axis: Axes, curves: Iterable[Mapping[int, float]], name: str = "chance"
) -> None:
    """Draw what chance has at each place along the axis: several curves where data sets differ."""
    known: list[dict[int, float]] = []
    for curve in curves:
        if curve and curve not in known:
            known.append(dict(sorted(curve.items())))
    for curve in known:
        if len(set(curve.values())) == 1:
            axis.axhline(next(iter(curve.values())), **_level_line())
        else:
            axis.plot(list(curve), list(curve.values()), **_level_line())
    if known:
        levels = [level for curve in known for level in curve.values()]
        ends = dict.fromkeys(f"{level:.1%}" for level in (min(levels), max(levels)))
        rightmost = max(list(curve.values())[-1] for curve in known)
        _label_level(axis, rightmost, f"{name} {' to '.join(ends)}")


def _level_line() -> dict[str, Any]:
    return {"color": mpl.rcParams["lines.color"], "linestyle": "--", "linewidth": 1.2}


def _label_level(axis: Axes, level: float, text: str) -> None:
    axis.annotate(
        "\n".join(textwrap.wrap(text, _NARROW_LABEL)) if is_narrow() else text,
        (1.0, level),
        xycoords=("axes fraction", "data"),
        xytext=(4, -6 if is_narrow() else 0),
        textcoords="offset points",
        va="bottom" if is_narrow() else "center",
        fontsize=10,
        label=_LEVEL,
        annotation_clip=False,
    )


def label_ends(
    axis: Axes,
    ends: Mapping[str, tuple[float, float]],
    styles: Mapping[str, RunStyle],
    number: str,
) -> None:
    """Write each run's name and value where its line ends, names pushed apart to stay legible.

    Among them is what chance has, where it is marked. On a narrow page they stand below the figure,
    which grows where they are many. Call it once the limits of the axis are final. ``number`` is
    the format of the value.
    """
    shown = {name: end for name, end in ends.items() if np.isfinite(end[1])}
    if is_narrow():
        handles = [
            Line2D([], [], label=f"{name}  {number.format(end[1])}", **styles[name].line())
            for name, end in shown.items()
        ]
        figure = axis.figure
        assert isinstance(figure, Figure)  # no part of one
        figure.legend(handles=handles, loc="outside lower left")
        extra = max(0, len(handles) - _ROWS)
        figure.set_size_inches(NARROW, figure.get_figheight() + _ROW_HEIGHT * extra)
        return
    ink = mpl.rcParams["text.color"]
    labels = [
        (f"{name}  {number.format(end[1])}", end, styles[name].colour)
        for name, end in shown.items()
    ]
    marks = [each for each in axis.texts if isinstance(each, Annotation)]
    for text in [each for each in marks if each.get_label() == _LEVEL]:
        right = axis.get_xlim()[1]
        labels.append((text.get_text(), (right, float(text.xy[1])), ink))
        text.remove()
    to_fraction = axis.transScale + axis.transLimits
    values = [float(to_fraction.transform(end)[1]) for _, end, _ in labels]
    heights = spread(values, 0.062, 0.031, 1.0)
    for (text, end, colour), height in zip(labels, heights, strict=True):
        axis.annotate(
            text,
            end,
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            color=colour,
            fontsize=10,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
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


def legend(figure: Figure, axis: Axes) -> None:
    """Put the legend of an axis below the whole figure."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        room = int(100 / (max(map(len, labels)) + 8))  # characters
        columns = 1 if is_narrow() else max(1, min(3, len(handles), room))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
