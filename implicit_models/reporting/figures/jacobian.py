"""The figure of Theorem 1: how a token moves the state of an implicit and of an explicit model."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from implicit_models.reporting.figures.style import is_narrow, new_figure, set_title

_FLOOR = 1e-8


def transition_jacobians(
    jacobians: Mapping[str, Float[np.ndarray, "N N"]], off_diagonal: Mapping[str, float]
) -> Figure:
    """Draw the sizes of the entries of some Jacobians of the state's transition, side by side.

    Entries below 1e-8 are drawn as 1e-8.

    Parameters
    ----------
    jacobians
        From a model's name to how its new state depends on the one before.
    off_diagonal
        The share of the squared norm off the diagonal, by name.
    """
    figure = new_figure(4.4, 4.4 * len(jacobians))
    shape = (len(jacobians), 1) if is_narrow() else (1, len(jacobians))
    axes = np.ravel(figure.subplots(*shape, squeeze=False))
    largest = max(float(np.abs(each).max()) for each in jacobians.values())
    sizes = LogNorm(_FLOOR, max(largest, 10 * _FLOOR))
    for axis, (name, jacobian) in zip(axes, jacobians.items(), strict=True):
        axis.grid(False)
        shown = np.clip(np.abs(jacobian), _FLOOR, None)
        picture = axis.imshow(shown, norm=sizes, cmap="viridis", interpolation="nearest")
        figure.colorbar(picture, ax=axis, shrink=0.8, label=f"size, at least {_FLOOR:g}")
        for labelled in (axis.xaxis, axis.yaxis):
            labelled.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("entry of the state before the token")
        axis.set_ylabel("entry of the state after it")
        share = off_diagonal[name]
        of_norm = f"{share:.1e}\nof the squared norm" if share else "nothing"
        set_title(axis, f"{name}\noff the diagonal: {of_norm}")
    return figure


def compared_entries(first: Float[np.ndarray, "N N"], second: Float[np.ndarray, "N N"]) -> Figure:
    """Draw the entries of a Jacobian taken in two ways against each other."""
    figure = new_figure(4.6)
    axis = figure.subplots()
    ends = [float(min(first.min(), second.min())), float(max(first.max(), second.max()))]
    axis.plot(ends, ends, linewidth=1)
    axis.plot(first.ravel(), second.ravel(), ".", markersize=3)
    axis.set_xlabel("by automatic differentiation of the model")
    axis.set_ylabel("by the formula of Theorem 1")
    largest = float(np.abs(first - second).max())
    set_title(axis, f"The same Jacobian in two ways: {largest:.1e} apart at most")
    return figure
