"""A picture of why models lose the product: their states by position."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from implicit_models.reporting.figures.axes import percent
from implicit_models.reporting.figures.style import COLOURS, DASHES

Rows = Sequence[Mapping[str, Any]]
"""A row for each position, as `evaluation.diagnosis.Diagnosis.rows` gives them."""

PANELS = {
    "right answers, token by token": ("accuracy",),
    "right answers, evaluation's window": ("accuracy_in_window",),
    "nearest carry has the same product": ("nearest_equal",),
    "distance, equal over unequal products": ("distance_equal", "distance_unequal"),
    "norm of the carry": ("carry_norm",),
    "self-iterations of a token": ("self_iterations",),
    "residual of a token's search": ("residual",),
    "spectral radius of the cell": ("spectral_radius",),
}
"""What is drawn: a quantity, or the first of two over the second."""

_SHARES = 3  # of the panels, the first ones
_OVER_DECADES = ("residual",)


def diagnosis_figure(
    found: Mapping[str, Rows], pasts: Mapping[str, Rows], training_length: int | None
) -> Figure:
    """Draw what is known of each position, and of different pasts, a line for each model.

    Parameters
    ----------
    found
        Rows by the models' names.
    pasts
        Those of `evaluation.pasts.PastDistance.rows`, likewise.
    training_length
        The longest sequences of the training are marked there; None marks nothing.
    """
    figure = Figure(figsize=(12, 9), layout="constrained")
    *axes, past = figure.subplots(3, 3).flatten()
    for number, ((title, quantities), axis) in enumerate(zip(PANELS.items(), axes, strict=True)):
        for place, (name, rows) in enumerate(found.items()):
            over = [_column(rows, quantity) for quantity in quantities]
            values = over[0]
            if len(over) > 1:  # over nothing where no two products are unequal
                nowhere = np.full_like(values, np.nan)
                values = np.divide(values, over[1], out=nowhere, where=over[1] > 0)
            axis.plot(_column(rows, "position"), values, label=name, **_line(place))
        axis.set_title(title)
        axis.set_xlabel("position (tokens)")
        if number < _SHARES:
            percent(axis)
            axis.set_ylim(-0.03, 1.03)
        elif quantities == _OVER_DECADES:
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        _finish(axis, training_length)
    for place, name in enumerate(found):
        if name in pasts:
            distances = _column(pasts[name], "distance")
            past.plot(_column(pasts[name], "common_tokens"), distances, **_line(place))
    past.set_title("what is left of different pasts")
    past.set_xlabel("tokens in common, after different pasts")
    past.set_ylabel("distance, over unequal products")
    past.set_yscale("log")
    past.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center")
    return figure


def _line(place: int) -> dict[str, Any]:
    """Return how a model's line is drawn."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": DASHES[place // len(COLOURS) % len(DASHES)],
        "linewidth": 1.6,
    }


def _column(rows: Rows, name: str) -> Float[np.ndarray, " L"]:
    return np.array([row[name] for row in rows], dtype=np.float64)  # None becomes NaN


def _finish(axis: Axes, training_length: int | None) -> None:
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if training_length is not None:
        axis.axvline(training_length, linewidth=1, linestyle=":")
