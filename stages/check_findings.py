"""What the check of parameters finds: a line for each mistake."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from implicit_models.parameters import ParameterError


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
    """What is found in a file of parameters, each line once.

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
        """Return everything, mistakes first."""
        return sorted(self._lines.values(), key=lambda finding: finding.level != "error")

    def mistakes(self) -> list[Finding]:
        """Return what is wrong with the parameters themselves."""
        return [finding for finding in self._lines.values() if finding.level == "error"]
