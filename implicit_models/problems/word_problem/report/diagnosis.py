"""A picture of why models lose the product: their states by position."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from implicit_models.reporting.figures.axes import percent
from implicit_models.reporting.figures.style import COLOURS, DASHES

Rows = Sequence[Mapping[str, float | None]]
"""A row for each position, as `evaluation.diagnosis.Diagnosis.rows` gives them."""

PANELS = {
    "right answers": ("accuracy",),
    "nearest carry has the same product": ("nearest_equal",),
    "distance of carries, equal over unequal products": ("distance_equal", "distance_unequal"),
    "norm of the carry": ("carry_norm",),
    "self-iterations of a token": ("self_iterations",),
    "spectral radius of the cell": ("spectral_radius",),
}
"""What is drawn: a quantity, or the first of two over the second."""

_SHARES = 2  # of the panels, the first ones


def diagnosis_figure(found: Mapping[str, Rows], training_length: int | None) -> Figure:
    """Draw what is known of each position, a line for each model.

    Parameters
    ----------
    found
        Rows by the models' names.
    training_length
        The longest sequences of the training are marked there; None marks nothing.
    """
    figure = Figure(figsize=(9.5, 8.5), layout="constrained")
    axes = figure.subplots(3, 2, sharex=True).flatten()
    for number, ((title, quantities), axis) in enumerate(zip(PANELS.items(), axes, strict=True)):
        for place, (name, rows) in enumerate(found.items()):
            over = [_column(rows, quantity) for quantity in quantities]
            axis.plot(
                _column(rows, "position"),
                over[0] / over[1] if len(over) > 1 else over[0],
                label=name,
                color=COLOURS[place % len(COLOURS)],
                linestyle=DASHES[place // len(COLOURS) % len(DASHES)],
                linewidth=1.6,
            )
        axis.set_title(title)
        _finish(axis, training_length, is_share=number < _SHARES)
    for axis in axes[-2:]:
        axis.set_xlabel("position (tokens)")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(len(found), 3)
    )
    return figure


def _column(rows: Rows, name: str) -> Float[np.ndarray, " L"]:
    return np.array([row[name] for row in rows], dtype=np.float64)  # None becomes NaN


def _finish(axis: Axes, training_length: int | None, *, is_share: bool) -> None:
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if is_share:
        percent(axis)
        axis.set_ylim(-0.03, 1.03)
    else:
        axis.set_ylim(bottom=0)
    if training_length is not None:
        axis.axvline(training_length, linewidth=1, linestyle=":")
