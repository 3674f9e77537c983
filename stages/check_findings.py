"""What the check of parameters finds: a line for each mistake."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from implicit_models.parameters import ParameterError

_OF_AN_ENTRY = re.compile(r"(?P<entry>\w+\.[\w-]+)\.(?P<said>.+)", re.DOTALL)
_MOST_NAMED = 8  # entries, in a line


def gigabytes(number: float) -> str:
    """Return a number of bytes, as lines have it."""
    return f"{number / 1e9:,.1f} GB"


@dataclass(frozen=True)
class Finding:
    """What the check has found, in one line.

    Attributes
    ----------
    level
        ``error``; or ``missing``, where the preset may be right and this machine lacks something.
        Nothing runs with either. ``warning``: it can run.
    """

    line: str
    level: str = "error"

    @property
    def stops(self) -> bool:
        """Whether nothing runs with it."""
        return self.level != "warning"


class Findings:
    """What is found in a file of parameters, each mistake once.

    Attributes
    ----------
    path
        The file.
    source
        What it is called.
    amounts
        Tokens that the splits of an entry of data have at most, by its key, once they were counted:
        every model of a text asks for them.
    """

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source = path, source
        self.amounts: dict[str, Mapping[str, int]] = {}
        self._lines: dict[str, Finding] = {}

    def add(self, text: Any, level: str = "error") -> None:
        """Add a line; where it comes from stands before it."""
        plain = " ".join(str(text).split()).replace(f"{self.path}: ", "")
        plain = plain.replace(str(self.path), self.source)
        line = plain if plain.startswith(self.source) else f"{self.source}: {plain}"
        self._lines.setdefault(line, Finding(line, level))

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Add what a block raises, and all that was wrong with the same section."""
        try:
            yield
        except ParameterError as error:
            for each in error.every():
                self.add(each)
        except OSError as error:  # a file that cannot be looked at
            self.add(error, "missing")

    def all(self) -> list[Finding]:
        """Return everything, mistakes first; what entries took over from each other, in a line."""
        merged = _merged(self._lines.values(), f"{self.source}: ")
        return sorted(merged, key=lambda finding: finding.level != "error")

    def mistakes(self) -> list[Finding]:
        """Return what is wrong with the parameters themselves."""
        return [finding for finding in self._lines.values() if finding.level == "error"]


def _merged(findings: Iterable[Finding], before: str) -> Iterator[Finding]:
    """Yield findings: of those that say the same of several entries the first, with the others."""
    groups: dict[tuple[str, str], list[tuple[Finding, str]]] = {}
    for finding in findings:
        parts = _OF_AN_ENTRY.fullmatch(finding.line.removeprefix(before))
        said, entry = (finding.line, "") if parts is None else (parts["said"], parts["entry"])
        groups.setdefault((finding.level, said), []).append((finding, entry))
    for (first, _), *others in groups.values():
        names = [entry for _, entry in others[:_MOST_NAMED]]
        if len(others) > _MOST_NAMED:
            names.append(f"{len(others) - _MOST_NAMED} more")
        same = f"; the same in {', '.join(names)}" if names else ""
        yield replace(first, line=first.line + same)
