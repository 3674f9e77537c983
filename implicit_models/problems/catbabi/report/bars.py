"""Rows of bars: a row for each task or word, a bar in it for each model."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from implicit_models.reporting.comparison import Candidate
from implicit_models.reporting.figures.style import RunStyle, new_figure

_ROW, _MARGIN = 0.16, 1.7  # inches: a bar, and what stands above and below them


def bar_figure(num_rows: int, num_models: int) -> tuple[Figure, Axes]:
    """Return a figure with room for a bar of each model in each row."""
    figure = new_figure(_MARGIN + _ROW * num_rows * (num_models + 0.8))
    return figure, figure.subplots()


def draw_bars(
    axis: Axes,
    values: Sequence[float],
    place: tuple[int, int],
    model: Candidate,
    styles: Mapping[str, RunStyle],
) -> BarContainer:
    """Draw the bars of a model, one in each row, and return them.

    Parameters
    ----------
    place
        Which of how many models it is in a row; implicit ones are filled, others are outlined.
    """
    index, count = place
    height = 0.84 / count
    rows = np.arange(len(values)) - 0.42 + (index + 0.5) * height
    colour = styles[model.name].colour
    fill = colour if model.kind == "implicit" else to_rgba(colour, 0.3)
    name = model.name + (f" (mean of {len(model.values)} seeds)" if len(model.values) > 1 else "")
    return axis.barh(rows, values, 0.9 * height, color=fill, edgecolor=colour, label=name)


def name_rows(axis: Axes, names: Sequence[str]) -> None:
    """Write the names of rows of bars, the first at the top."""
    axis.set_yticks(range(len(names)), names, parse_math=False)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")
