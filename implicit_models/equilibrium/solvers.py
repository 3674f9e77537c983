"""How a search goes from one iterate to the next."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Picard:
    """Move by ``damping`` towards the cell's value: ``z <- z + damping * (f(z) - z)``."""

    damping: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.damping < 2.0:
            raise ValueError(f"damping is {self.damping}; it must lie between 0 and 2 (exclusive)")

    def step(self, value: Tensor, evaluated: Tensor) -> Tensor:
        """Give the next iterate from the present one and the cell's value there."""
        if self.damping == 1.0:
            return evaluated
        return value.lerp(evaluated, self.damping)
