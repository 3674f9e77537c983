"""The figure of Theorem 1: how a token moves the state of an implicit and of an explicit model."""

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from implicit_models.reporting.figures.style import COLOURS, is_narrow, new_figure, set_title

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
        axis.set_xlabel("state before the token, by entry")
        axis.set_ylabel("state after it, by entry")
        share = off_diagonal[name]
        of_norm = f"{share:.1e}\nof the squared norm" if share else "nothing"
        set_title(axis, f"{name}\noff the diagonal: {of_norm}")
    return figure


def compared_entries(first: Float[np.ndarray, "N N"], second: Float[np.ndarray, "N N"]) -> Figure:
    """Draw the sizes of a Jacobian's entries, taken in two ways, against each other.

    Those on the diagonal and those off it are apart. Entries that are nothing in one of the ways
    are not drawn; the difference that the title tells counts them.
    """
    figure = new_figure(4.6)
    axis = figure.subplots()
    sizes = np.abs(np.stack([first, second]))
    shown = (sizes > 0).all(0)
    ends = [sizes[:, shown].min(initial=1.0), sizes[:, shown].max(initial=_FLOOR)]
    axis.plot(ends, ends, linewidth=1, color=mpl.rcParams["lines.color"])
    on = np.eye(len(first), dtype=bool)
    for place, (label, part) in enumerate({"off the diagonal": ~on, "on it": on}.items()):
        style = {"color": COLOURS[place], "markersize": (3, 5)[place]}
        axis.plot(*sizes[:, part & shown], "so"[place], label=label, **style)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("size by automatic differentiation of the model")
    axis.set_ylabel("size by the formula of Theorem 1")
    axis.legend()
    apart = np.abs(first - second)[~on].max(initial=0.0)
    largest = np.abs(first)[~on].max(initial=0.0)
    told = f"{apart / largest:.1e} of the largest entry" if largest else f"{apart:.1e}"
    set_title(axis, f"The same Jacobian in two ways\n(off the diagonal at most {told} apart)")
    return figure
