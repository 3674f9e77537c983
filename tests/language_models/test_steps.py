"""A cell that takes a search's step by itself finds what the engine finds step by step."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from implicit_models.equilibrium.cells import SteppingCell
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import ResidualBelow
from implicit_models.equilibrium.window import Window
from tests.language_models.kinds import model_of


@dataclass
class WithoutSteps:
    """A cell that cannot take a step by itself."""

    cell: Any

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return self.cell(value)

    def evaluate(self, value: torch.Tensor) -> Any:
        return self.cell.evaluate(value)

    def select(self, rows: torch.Tensor) -> "WithoutSteps":
        return WithoutSteps(self.cell.select(rows))

    def window(self, rows: torch.Tensor, tokens: torch.Tensor, carry: Any) -> "WithoutSteps":
        return WithoutSteps(self.cell.window(rows, tokens, carry))


@pytest.mark.parametrize("lengths", [None, [9, 3, 6]])
@pytest.mark.parametrize("window", [None, Window(1, 2), Window(4, 3)], ids=str)
@pytest.mark.parametrize("damping", [0.6, 1.0])
@pytest.mark.parametrize("kind", ["mamba2-implicit", "llama-implicit"])
def test_steps_are_evaluations_measured(
    kind: str, damping: float, window: Window | None, lengths: list[int] | None
) -> None:
    text = torch.randint(0, 8, (3, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        cell, start = model_of(kind).trunk.cell(text)
    assert isinstance(cell, SteppingCell) and not isinstance(WithoutSteps(cell), SteppingCell)
    settings = {
        "window": window,
        "lengths": None if lengths is None else torch.tensor(lengths),
    }
    found, expected = (
        find_fixed_point(each, start, Picard(damping), ResidualBelow(1e-3, 40), **settings)
        for each in (cell, WithoutSteps(cell))
    )
    assert torch.equal(found.result, expected.result)
    assert torch.equal(found.steps, expected.steps)
    inside = torch.arange(9) < torch.tensor(lengths or [9] * 3)[:, None]
    torch.testing.assert_close(found.value[inside], expected.value[inside], rtol=1e-4, atol=1e-4)
