"""How figures look: on light and on dark ground, and one style per run in all of them."""

import collections
import contextlib
import hashlib
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from implicit_models.reporting.results import RunResults
from implicit_models.reporting.summary import group_by_seed

# Told apart by colour-blind readers too, and legible on white and on near-black.
COLOURS = ("#447755", "#9900ff", "#999911", "#0099cc", "#3366cc", "#776622", "#bb2288", "#ff5588")
_FIRST = 4  # of the colours: those that are furthest from one another
DASHES: tuple[Any, ...] = (
    *("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5))),
    (0, (6, 1.5, 1.5, 1.5, 1.5, 1.5)),
)

WIDE, NARROW = 8.5, 4.3
"""Widths of figures in inches: beside a page of text, and on a telephone."""

_NARROW_TITLE = 36  # characters

ABOVE = "_above the axis"
"""The label, as artists have them, of a text between an axis and its title: in no legend."""

_ABOVE_LABELS = 18  # points between an axis and a title above such texts

TO_INK = "to ink"
"""A ground whose inks nothing else has: pictures on it are for `inked`."""

_INK = {
    TO_INK: {"ink": "#010305", "faint": "#010307", "grid": "#010309", "paper": "#01030b"},
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
def theme(name: str = "light", *, narrow: bool = False) -> Iterator[None]:
    """Draw on white (``"light"``) or on near-black (``"dark"``), and for a page of some width."""
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
        "figure.figsize": (NARROW if narrow else WIDE, 4.6),
    }
    with mpl.rc_context(settings):
        yield


def inked(svg: str, ground: str) -> str:
    """Return a picture drawn on the ground `TO_INK` as it is on light or on dark ground."""
    for name, colour in _INK[TO_INK].items():
        svg = svg.replace(colour, _INK[ground][name])
    return svg


def is_narrow() -> bool:
    """Return whether figures are drawn for a narrow page."""
    return mpl.rcParams["figure.figsize"][0] == NARROW


def new_figure(height: float, narrow_height: float | None = None) -> Figure:
    """Return an empty figure of the page's width; heights are in inches."""
    if is_narrow():
        return Figure(figsize=(NARROW, narrow_height or height))
    return Figure(figsize=(WIDE, height))


def wrapped(text: str) -> str:
    """Return a title or a label in lines that the page has room for."""
    return "\n".join(textwrap.wrap(text, _NARROW_TITLE)) if is_narrow() else text


def set_title(axis: Axes, title: str) -> None:
    """Set the title of an axis, in lines that the page has room for."""
    is_free = all(text.get_label() != ABOVE for text in axis.texts)
    axis.set_title(wrapped(title), pad=None if is_free else _ABOVE_LABELS)


def four_axes(figure: Figure) -> tuple[Axes, Axes, Axes, Axes]:
    """Return two columns of two axes, each column with one scale: left from the top, then right.

    A narrow page has them below one another.
    """
    if is_narrow():
        left, left_bottom, right, right_bottom = figure.subplots(4, 1)
        left.sharex(left_bottom)
        right.sharex(right_bottom)
    else:
        (left, right), (left_bottom, right_bottom) = figure.subplots(2, 2, sharex="col")
    return left, left_bottom, right, right_bottom


def run_styles(runs: Sequence[RunResults]) -> dict[str, RunStyle]:
    """Return a style for each run of some that are drawn together.

    Colours belong to names, without that of the data set before them: a model has one colour on
    all data sets that are drawn by themselves, and one on each of those that are drawn together.
    Each name ranks the colours in an order of its own, and whoever ranks one highest has it, the
    first four colours before the others, so that an entry more or less changes few of the others.
    Where models share a colour, because there are more of them, they start at different dashes.
    """
    groups = group_by_seed(runs)
    models = {name: name.removeprefix(f"{group[0].dataset}_") for name, group in groups.items()}
    starts: collections.Counter[str] = collections.Counter()
    styles = {}
    for name, colour in _colours(models).items():
        dashes = itertools.islice(itertools.cycle(DASHES), starts[colour], None)
        starts[colour] += 1
        styles |= {
            run.name: RunStyle(colour=colour, dash=dash)
            for run, dash in zip(groups[name], dashes, strict=False)
        }
    return {run.name: styles[run.name] for run in runs}


def told_apart(styles: Iterable[RunStyle]) -> list[RunStyle]:
    """Return styles in which those of one colour have a dash each, in turn of `DASHES`."""
    dashes = collections.defaultdict(lambda: itertools.cycle(DASHES))
    return [replace(style, dash=next(dashes[style.colour])) for style in styles]


def _colours(models: Mapping[str, str]) -> dict[str, str]:
    """Return a colour for each name, in the order in which they are given out.

    Parameters
    ----------
    models
        From a name to what of it ranks the colours.
    """

    def rank(pair: tuple[str, str]) -> tuple[bytes, str]:
        name, colour = pair
        return hashlib.sha256(f"{models[name]} {colour}".encode()).digest(), name

    found: dict[str, str] = {}
    banks = itertools.cycle((COLOURS[:_FIRST], COLOURS[_FIRST:]))
    while len(found) < len(models):  # with more names than colours, some share one
        free = set(next(banks))
        for name, colour in sorted(itertools.product(models, free), key=rank):
            if name not in found and colour in free:
                found[name] = colour
                free.remove(colour)
    return found
