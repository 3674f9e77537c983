"""Noise on what a cell reads of its own value: trained with it, a cell takes errors back."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.cells import Cell
from implicit_models.equilibrium.checks import check_positive


@dataclass(frozen=True)
class ValueNoise:
    """Seek the fixed point of ``z -> f(z + size * rms(z) * noise)`` in place of the cell's own.

    The noise is normal, drawn from ``seed`` once for a pass, so that there is a fixed point; it is
    measured in the root mean square of each token's value (as hidden states of recurrent networks
    are perturbed in Jim et al. 1996, Lim et al. 2021).
    """

    size: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("size", self.size)

    def __call__(self, cell: Cell, like: Float[Tensor, "B L D"]) -> "NoisyCell":
        """Return the cell that reads noisy values of the shape of ``like``."""
        draw = torch.Generator().manual_seed(self.seed)
        noise = torch.randn(like.shape, generator=draw, dtype=torch.float32).to(like)
        return NoisyCell(cell, self.size * noise)


@dataclass(frozen=True)
class NoisyCell:
    """A cell that reads ``z + rms(z) * noise`` in the place of ``z``."""

    cell: Cell
    noise: Float[Tensor, "B L D"]

    def __call__(self, value: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Evaluate the cell."""
        size = value.square().mean(-1, keepdim=True).sqrt()
        return self.cell(value + size * self.noise)

    def select(self, rows: Int[Tensor, " R"]) -> "NoisyCell":
        """Return the cell of some of the batch's sequences, each with its own noise."""
        return NoisyCell(self.cell.select(rows), self.noise[rows.to(self.noise.device)])
