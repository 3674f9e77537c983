"""What stands in the documentation: blocks between fences, and the commands of shells in them."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.repositories import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """What stands between two fences.

    Attributes
    ----------
    page
        Its file's name.
    language
        That is written behind the first fence.
    text
        Between them, without the indentation that all of it has.
    before
        What the page has before it.
    output
        The block that stands right behind it, if there is one.
    """

    page: str
    language: str
    text: str
    before: str
    output: str


def python_blocks(page: Path) -> list[str]:
    """Return all blocks of a page, from top to bottom."""
    return [block.text for block in blocks(page) if block.language == "python"]


@cache
def blocks(page: Path) -> list[Block]:
    """Return all blocks of a page, in whatever language."""
    text = page.read_text()
    found = list(_FENCED.finditer(text))
    behind = {each.start(): textwrap.dedent(each[3]) for each in found}
    return [
        Block(
            page.name,
            each[2],
            textwrap.dedent(each[3]),
            text[: each.start()],
            behind.get(each.end() + len("\n\n"), ""),
        )
        for each in found
    ]


def all_blocks(language: str) -> list[Block]:
    """Return the blocks of a language in all pages."""
    return [block for page in PAGES for block in blocks(page) if block.language == language]


def inline_code() -> Iterator[str]:
    """Yield what stands between single backquotes in these pages, inside of double ones as well."""
    for page in PAGES:
        text = _FENCED.sub("", page.read_text()).replace("``", "")
        yield from (each[1] for each in _INLINE.finditer(text))


def command_lines(block: str) -> list[str]:
    """Return the lines of a block that a shell reads: those behind a $, where there are some."""
    lines = block.replace("\\\n", " ").splitlines()
    prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return prompted or [line for line in lines if line.strip()]


def commands(line: str) -> list[list[str]]:
    """Return the words of each command of a line, without its comment."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    reader.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in reader:
        if set(word) <= set(";&|"):
            found.append([])
        else:
            found[-1].append(word)
    return found


def without_variables(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Divide a command into the variables that it is given and itself."""
    number = next((i for i, each in enumerate(words) if not re.match(r"\w+=", each)), len(words))
    return dict(each.split("=", 1) for each in words[:number]), words[number:]


def figures_of_the_paper() -> dict[str, tuple[str, list[str]]]:
    """Return for each notebook which figure of the paper it is, and the presets at that scale.

    As docs/figures.md says in its first table.
    """
    page = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")
    head = page.index("| notebook | ")
    found = {}
    for line in page[head : page.index("\n\n", head)].splitlines()[2:]:
        notebook, _, figure, _, scaled = (each.strip() for each in line.strip("|").split("|"))
        found[notebook.strip("`")] = figure, re.findall(r"`(\w[\w.]*)`", scaled)
    return found
