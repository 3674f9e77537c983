"""How a gradient is taken at, or on the way to, a fixed point."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from implicit_models.equilibrium.iterate import Cell
from implicit_models.equilibrium.solvers import Picard


@dataclass(frozen=True)
class Unrolled:
    """Differentiate through ``num_steps`` plain iterations (backpropagation through the loop)."""

    num_steps: int

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"num_steps is {self.num_steps}; it must be 1 or more")

    def __call__(self, cell: Cell, value: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Iterate from ``value`` with gradient."""
        return _iterate_with_gradient(cell, value, self.num_steps, Picard())


@dataclass(frozen=True)
class Phantom:
    """Differentiate through ``num_steps`` damped iterations from the point found.

    The phantom gradient (Geng et al. 2021): a truncated, damped Neumann series of the implicit
    function theorem's inverse, whose memory does not grow with the search.
    """

    num_steps: int
    damping: float

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"num_steps is {self.num_steps}; it must be 1 or more")
        Picard(self.damping)

    def __call__(self, cell: Cell, value: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Iterate from ``value`` with gradient."""
        return _iterate_with_gradient(cell, value, self.num_steps, Picard(self.damping))


Gradient = Unrolled | Phantom


def _iterate_with_gradient(cell: Cell, value: Tensor, num_steps: int, solver: Picard) -> Tensor:
    for _ in range(num_steps):
        value = solver.step(value, cell(value))
    return value
