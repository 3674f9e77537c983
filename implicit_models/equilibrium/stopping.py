"""When the search of a sequence ends."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FixedSteps:
    """Evaluate the cell ``num_steps`` times, whatever the residual."""

    num_steps: int

    def __post_init__(self) -> None:
        if self.num_steps < 0:
            raise ValueError(f"num_steps is {self.num_steps}; it must be 0 or more")

    @property
    def max_steps(self) -> int:
        """The most evaluations a sequence may take."""
        return self.num_steps

    def converged(self, residual: Tensor) -> Tensor:
        """Tell for each sequence whether it may leave: never before the last step."""
        return torch.zeros_like(residual, dtype=torch.bool)


@dataclass(frozen=True)
class ResidualBelow:
    """End a sequence once its relative residual is below ``tolerance``, or after ``max_steps``."""

    tolerance: float
    max_steps: int

    def __post_init__(self) -> None:
        if not self.tolerance > 0.0:
            raise ValueError(f"tolerance is {self.tolerance}; it must be positive")
        if self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}; it must be 1 or more")

    def converged(self, residual: Tensor) -> Tensor:
        """Tell for each sequence whether its residual is below the tolerance."""
        return residual < self.tolerance


Stopping = FixedSteps | ResidualBelow
