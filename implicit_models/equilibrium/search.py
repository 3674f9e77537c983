"""What the one loop iterates: the sequences, or parts of them, that are still searched."""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.solution import Solution


@runtime_checkable
class Search(Protocol):
    """A search under way: `find_fixed_point` drives it, and a solver evaluates the cell through it.

    It has R rows, a sequence each, that are still searched, and S tokens of each: all of them, or
    those in a window. A row whose sequence has ended leaves.

    Attributes
    ----------
    value
        The present iterate, which is evaluated next.
    """

    value: Float[Tensor, "R S D"]

    def has_ended(self, step: int) -> bool:
        """Return whether nothing is left to search after so many steps."""
        ...

    def evaluate(self) -> tuple[Float[Tensor, "R S D"], Float[Tensor, "R S"]]:
        """Return the cell's value at ``value``, and each token's residual.

        Padding rests: its value is returned as it is.
        """
        ...

    def damped_step(
        self, damping: float
    ) -> tuple[Float[Tensor, "R S D"], Float[Tensor, "R S"]] | None:
        """Return ``z + damping * (f(z) - z)`` and each token's residual, in the cell's own step.

        None where the cell has none of its own, or none in the stopping rule's measure.
        """
        ...

    def write_residual(
        self, residual: Float[Tensor, "R S"], observed: Float[Tensor, "B L"]
    ) -> None:
        """Write the rows' residuals into those of the whole batch; padding shows NaN."""
        ...

    def accept(
        self,
        step: int,
        following: Float[Tensor, "R S D"],
        residual: Float[Tensor, "R S"],
        state: Any,
    ) -> Int[Tensor, " K"] | None:
        """Take up the next iterate; return which rows stay, None where all do.

        ``step`` counts the evaluations so far; ``state`` is the solver's.
        """
        ...

    def solution(self) -> Solution:
        """Return the outcome."""
        ...
