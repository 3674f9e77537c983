"""A table of text, and how numbers are written in it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LETTER_PIXELS, _CELL_PIXELS = 7, 20  # of the report's style

SELF_ITERATIONS = (
    "Self-iterations are evaluations of the cell that follow one another, the one that gives the "
    "output included"
)
WORK = "Evaluations per token are the work: all tokens computed in them over those of the sequence"
RESIDUALS = (
    "Through the sliding window each token is judged by its own residual; where whole sequences "
    "are searched it is that of the worst token"
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text.

    Attributes
    ----------
    note
        What a reader must know to read it rightly.
    rows
        Cells as text, one for each column; the first names a run.
    num_text_columns
        How many of the first columns are words; the others are numbers, aligned to the right.
    """

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_text_columns: int = 2

    @property
    def pixels(self) -> int:
        """About how wide the table is in HTML: below this the page has it scroll."""
        cells = [[row[index] for row in self.rows] for index in range(len(self.columns))]
        words = (max(column.split(), key=len, default="") for column in self.columns)
        widest = (max(map(len, (word, *column))) for word, column in zip(words, cells, strict=True))
        return sum(_CELL_PIXELS + _LETTER_PIXELS * letters for letters in widest)

    def _repr_markdown_(self) -> str:
        """Return the table as notebooks show it."""
        numbers = len(self.columns) - self.num_text_columns
        rule = ["---"] * self.num_text_columns + ["--:"] * numbers
        rows = "\n".join(f"| {' | '.join(row)} |" for row in (self.columns, rule, *self.rows))
        return f"**{self.title}**\n\n{self.note}\n\n{rows}"


def said_of_each(sayings: Mapping[str, str]) -> list[str]:
    """Return each text once; where texts differ, after the names of the runs that it is said of."""
    names: dict[str, list[str]] = {}
    for name, saying in sayings.items():
        names.setdefault(saying, []).append(name)
    if len(names) == 1:
        return list(names)
    return [f"{', '.join(of)}: {saying}" for saying, of in names.items()]


def percent(value: float | None, decimals: int = 1) -> str:
    """Return a share in percent."""
    return "-" if value is None else f"{100 * value:.{decimals}f} %"


def number(value: float | None) -> str:
    """Return a number in three significant digits; a count or a time from 100 on in full."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def scientific(value: float | None) -> str:
    """Return a number as three significant digits and a power of ten."""
    if value is None or math.isnan(value):
        return "-"
    digits, power = f"{value:.2e}".split("e")
    return f"{digits}e{int(power)}"


def fixed(value: float | None, decimals: int) -> str:
    """Return a value with a fixed number of decimals."""
    return "-" if value is None or math.isnan(value) else f"{value:.{decimals}f}"


def ratio(value: float | None, reference: float | None) -> str:
    """Return a value relative to a reference; 1.00x is the same."""
    if value is None or not reference:
        return "-"
    return f"{value / reference:.2f}x"


def perplexity(value: float | None, standard_error: float | None = None) -> str:
    """Return a perplexity, with its standard error where it is known."""
    if value is None or not math.isfinite(value):
        return "-"
    decimals = 3 if value < 10 else 2 if value < 100 else 1
    if value >= 1e6:
        return scientific(value)
    known = standard_error is not None and math.isfinite(standard_error)
    error = f" ± {standard_error:,.{decimals}f}" if known else ""
    return f"{value:,.{decimals}f}{error}"
