"""What pages say of measurements in words: their passages, numbers, days and commits."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_BY_MACHINE = re.compile(r"<!-- (\w[\w ]*)(?:: [^>]*)? ?-->\n.*?<!-- end of \1 -->", re.DOTALL)
_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
_NEXT = re.compile(r"\n{2,}(?![|\s])|\n(?=- )")  # a table belongs to what stands before it

_DATE = re.compile(
    r"\d{1,2} (?:January|February|March|April|May|June|July|August|September|October|November"
    r"|December) 20\d\d\b[^.;()|]*?`[0-9a-f]{7}`"
)
_NO_MEASUREMENT = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\b(?:Python|torch|torchdeq|transformers|mamba-ssm|Triton|CUDA|MLflow|Slurm"
    r"|SQLAlchemy|tested with|arXiv)(?: |'s |:)\d+(?:\.\d+)+|\b\d+(?:\.\d+){2,}|\b95 % interval"
    r"|\b99 % or more"
)
_NUMBER = re.compile(
    r"(?<![\w.,])(?:"
    r"\d[\d,]*\.\d+(?:e-?\d+)?|\.\d+|\d+e-?\d+"  # a decimal number
    r"|\d[\d,]* of (?:the |its |our )?(?:\d[\d,]*|two|three|four|five|six|seven|eight|nine|ten)\b"
    r"|\d[\d,]*(?= ?%| (?:s|ms|µs|min|h|hours|minutes|MB|MiB|GiB|FLOPs)\b)"  # one with a unit
    r")(?![\d])"
)


@dataclass(frozen=True)
class Passage:
    """A paragraph or an item of a list, with the tables by hand that follow it.

    Attributes
    ----------
    section
        The headings above it.
    text
        What it says, in one line.
    opening
        What the sections it stands in begin with; it may be the passage itself.
    """

    section: tuple[str, ...]
    text: str
    opening: tuple[str, ...]

    @property
    def is_dated(self) -> bool:
        """Whether it, or the opening of a section around it, names a day and a commit."""
        return any(_DATE.search(text) for text in (self.text, *self.opening))

    def measured(self, compared: Iterable[str] = ()) -> list[str]:
        """Return its measured numbers but for those in fragments that are compared."""
        text = self.text
        for fragment in compared:
            text = text.replace(fragment, " ")
        return _NUMBER.findall(_NO_MEASUREMENT.sub(" ", _DATE.sub(" ", text)))


def passages(page: Path) -> list[Passage]:
    """Return what a page says outside of code and of what the machine writes, in its order."""
    text = _CODE.sub("", _BY_MACHINE.sub("", page.read_text()))
    found: list[Passage] = []
    headings: list[str] = []
    openings: dict[int, str] = {}
    _, *parts = _HEADING.split(text)
    for level, heading, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        depth = len(level)
        headings = [*headings[: depth - 1], heading]
        openings = {each: openings[each] for each in openings if each < depth}
        for block in filter(str.strip, _NEXT.split(body)):
            said = " ".join(block.split())
            openings.setdefault(depth, said)
            opening = tuple(each for level, each in openings.items() if level > 1)
            found.append(Passage(tuple(headings), said, opening))
    return found
