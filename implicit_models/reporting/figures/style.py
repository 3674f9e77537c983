"""How figures look: on light and on dark ground, and one style per run in all of them."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import matplotlib.style

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
        """Return the keyword arguments that draw a line."""
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
    """Return a style for each run, by its position in params.yaml: the same in every figure."""
    return {
        run.name: RunStyle(colour=colour, dash=dash)
        for group, colour in zip(
            group_by_seed(runs).values(), itertools.cycle(COLOURS), strict=False
        )
        for run, dash in zip(group, itertools.cycle(DASHES), strict=False)
    }
