"""A figure as the report shows it: for every page and ground, and the same for the same results."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from implicit_models.reporting import figures
from implicit_models.reporting.entry_results import EntryResults
from implicit_models.reporting.results import RunResults

Draw = Callable[[Sequence[Any], Mapping[str, figures.RunStyle]], Figure]


@dataclass(frozen=True, kw_only=True)
class Illustration:
    """A figure with its text, on light and on dark ground, for a wide and a narrow page.

    Attributes
    ----------
    name
        Stem of its file.
    runs
        Names of the runs that it shows.
    light, dark
        The figure as SVG.
    narrow, narrow_dark
        The figure for a narrow page.
    """

    name: str
    runs: Sequence[str]
    caption: str
    light: str
    dark: str
    narrow: str
    narrow_dark: str

    @staticmethod
    def as_link(svg: str) -> str:
        """Return the picture as a ``data:`` URL, which contains all of it."""
        return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def illustrate(
    draw: Draw,
    runs: Sequence[RunResults] | Sequence[EntryResults],
    styles: Mapping[str, figures.RunStyle],
    caption: str,
    number: int = 1,
) -> Illustration:
    """Draw a figure of runs on one dataset; it is named after the dataset and what draws it.

    Parameters
    ----------
    number
        Of figures whose names would be the same: from the second on it is part of them.
    """
    name = f"{runs[0].dataset}_{draw.__name__}" + (f"_{number}" if number > 1 else "")
    wide, narrow = (svg_of(draw, runs, styles, name, narrow) for narrow in (False, True))
    return Illustration(
        name=name,
        runs=[run.name for run in runs],
        caption=caption,
        light=figures.inked(wide, "light"),
        dark=figures.inked(wide, "dark"),
        narrow=figures.inked(narrow, "light"),
        narrow_dark=figures.inked(narrow, "dark"),
    )


def svg_of(
    draw: Draw,
    runs: Sequence[Any],
    styles: Mapping[str, figures.RunStyle],
    name: str,
    narrow: bool,
) -> str:
    """Draw a figure as SVG whose text depends on the results alone (no time, no random ids).

    Its inks stand in for those of either ground, as the rest of the picture is the same on both.
    """
    buffer = io.StringIO()
    with figures.theme(figures.TO_INK, narrow=narrow), mpl.rc_context({"svg.hashsalt": name}):
        # Figure.savefig would draw it twice, first for the layout alone.
        FigureCanvasSVG(draw(runs, styles)).print_svg(buffer, metadata={"Date": None})
    return buffer.getvalue()
