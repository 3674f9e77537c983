"""Notebooks run in this process: what they show and print, without a kernel."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scripts.store_notebooks import NOTEBOOKS, read


class Ran(NamedTuple):
    """What a notebook has shown, and the lines that it has printed."""

    shown: list[Any]
    printed: list[str]

    def num(self, kind: type) -> int:
        """Return how many of the things shown are of a class."""
        return sum(isinstance(each, kind) for each in self.shown)


def run_notebook(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ran:
    """Run the cells of a notebook on the results below ``root``, one after another."""
    monkeypatch.setenv("RESULTS_ROOT", str(root))
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    capsys.readouterr()
    namespace: dict[str, Any] = {}
    for cell in read(NOTEBOOKS / f"{name}.ipynb").cells:
        if cell.cell_type == "code":
            source = "\n".join(line for line in cell.source.split("\n") if line[:1] != "%")
            exec(compile(source, f"{name}.ipynb", "exec"), namespace)
    return Ran(shown, capsys.readouterr().out.splitlines())
