"""Cells whose fixed points are known."""

from dataclasses import dataclass

import torch


@dataclass
class AffineCell:
    """``f(z) = z @ matrix + offset``, whose fixed point is ``offset @ (1 - matrix)^-1``."""

    matrix: torch.Tensor  # (D, D), or (B, D, D)
    offset: torch.Tensor  # (B, L, D)
    evaluated: list[int] | None = None

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        if self.evaluated is not None:
            self.evaluated.append(value.shape[0])
        return value @ self.matrix + self.offset

    def select(self, rows: torch.Tensor) -> "AffineCell":
        matrix = self.matrix[rows] if self.matrix.dim() == 3 else self.matrix
        return AffineCell(matrix, self.offset[rows], self.evaluated)

    def fixed_point(self) -> torch.Tensor:
        identity = torch.eye(self.matrix.shape[-1], dtype=self.matrix.dtype)
        return self.offset @ torch.linalg.inv(identity - self.matrix)


def affine_cell(contractions: list[float], length: int = 3, width: int = 4) -> AffineCell:
    """A cell whose sequences contract at different rates, in float64."""
    draw = torch.Generator().manual_seed(0)
    batch = len(contractions)
    rotation = torch.linalg.qr(torch.randn(batch, width, width, generator=draw).double())[0]
    matrix = rotation * torch.tensor(contractions).double()[:, None, None]
    return AffineCell(matrix, torch.randn(batch, length, width, generator=draw).double())
