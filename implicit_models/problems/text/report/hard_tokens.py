"""Where a model needs many self-iterations and where few: a text, each token in its colour."""

import functools
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from implicit_models.problems.text.report.results import TextResults
from implicit_models.reporting.figures.style import RunStyle, is_narrow, new_figure, wrapped

LINE_WIDTH, NARROW_LINE_WIDTH = 80, 40  # characters
_FONT = "DejaVu Sans Mono"  # comes with matplotlib
_CELL = 0.19  # inches: the height of a line of text
_LONGEST = 16  # characters of a token
_VISIBLE = {"\n": "\u21b5", "\r": "\u2190", "\t": "\u21e5", "\ufffd": "\u25af"}


def hard_tokens(runs: Sequence[TextResults], _: Mapping[str, RunStyle]) -> Figure:
    """Colour a text by the self-iterations that each token took, and by its nats.

    A token counts as one letter where it is one byte of several of a letter. Line ends and what
    has no letter are shown as signs. Self-iterations are left out where all tokens took as many, as
    in a search of whole sequences.
    """
    panels = [
        (run, name, values)
        for run in runs
        for name, values in (
            ("self-iterations", [token.self_iterations for token in run.shown_tokens]),
            ("nats", [token.nats for token in run.shown_tokens]),
        )
        if np.isfinite(values).any() and (name == "nats" or np.ptp(values) > 0)
    ]
    texts = [[visible(token.text) for token in run.shown_tokens] for run, _, _ in panels]
    width = NARROW_LINE_WIDTH if is_narrow() else LINE_WIDTH
    places = [flow([len(text) for text in line], width) for line in texts]
    heights = [1 + place[-1][0] for place in places]
    titles = 1.0 if is_narrow() else 0.75
    inches = sum(_CELL * height + titles for height in heights)
    figure = new_figure(max(inches, 1.0))
    if panels:
        axes = np.ravel(figure.subplots(len(panels), 1, height_ratios=heights))
        for axis, (run, name, values), text, place in zip(axes, panels, texts, places, strict=True):
            _draw(axis, f"{run.name}: {name} per token", np.array(values), text, place, width)
    return figure


def flow(widths: Sequence[int], line_width: int) -> list[tuple[int, int]]:
    """Return the line and the column of each token, written one after another in these widths."""
    places, line, column = [], 0, 0
    for width in widths:
        if column and column + width > line_width:
            line, column = line + 1, 0
        places.append((line, column))
        column += width
    return places


def visible(text: str) -> str:
    """Replace what the font cannot show, and shorten what is long."""
    text = text or "\ufffd"
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\u2026"
    signs = (_VISIBLE.get(letter, letter) for letter in shown)
    return "".join(sign if ord(sign) in _letters() else _VISIBLE["\ufffd"] for sign in signs)


@functools.cache
def _letters() -> frozenset[int]:
    """Return the printable code points that the font has."""
    path = font_manager.findfont(_FONT)
    return frozenset(
        code for code in font_manager.get_font(path).get_charmap() if chr(code).isprintable()
    )


def _draw(
    axis: Axes,
    title: str,
    values: Float[np.ndarray, " L"],
    texts: Sequence[str],
    places: Sequence[tuple[int, int]],
    width: int,
) -> None:
    known = values[np.isfinite(values)]
    scale = Normalize(known.min(), known.max())
    shades = mpl.colormaps["viridis"].with_extremes(bad="#8a9099")
    colours = shades(scale(np.ma.masked_invalid(values)))
    lines, columns = np.array(places).T
    axis.barh(lines, [len(text) for text in texts], left=columns, height=0.92, color=colours)
    for text, colour, (line, column) in zip(texts, colours, places, strict=True):
        is_bright = float(np.dot(colour[:3], (0.299, 0.587, 0.114))) > 0.5
        axis.text(
            column + len(text) / 2,
            line,
            text,
            color="#111111" if is_bright else "#ffffff",
            family=_FONT,
            fontsize=9,
            ha="center",
            va="center_baseline",
            parse_math=False,
        )
    axis.set_xlim(0, width)
    axis.set_ylim(lines[-1] + 0.5, -0.5)
    axis.set_axis_off()
    axis.set_title(wrapped(f"{title}, mean {known.mean():.3g}"), fontsize=10)
    bar = axis.figure.colorbar(ScalarMappable(scale, shades), ax=axis, pad=0.01, fraction=0.02)
    bar.outline.set_visible(False)
