"""What is searched: functions of all tokens' values, with whatever else they read frozen inside."""

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.stopping import Measure


@runtime_checkable
class Cell(Protocol):
    """The function whose fixed point is sought."""

    def __call__(self, value: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Evaluate the cell; shape, dtype and device stay."""
        ...

    def select(self, rows: Int[Tensor, " R"]) -> "Cell":
        """Return the cell of some of the batch's sequences."""
        ...


@runtime_checkable
class Carry(Protocol):
    """All that later tokens need of those before them. Its content is the cell's own affair."""

    def select(self, rows: Int[Tensor, " R"]) -> "Carry":
        """Return the carry of some of the sequences."""
        ...


@runtime_checkable
class Trail(Protocol):
    """What an evaluation leaves behind, from which the carry after any of its tokens follows."""

    def carry(self, counts: Int[Tensor, " B"] | None = None) -> Carry:
        """Return the carry after each sequence's first ``counts`` tokens; None means all."""
        ...


@runtime_checkable
class WindowedCell(Protocol):
    """A causal cell's tokens in a window, what lies before them frozen in a carry."""

    def evaluate(self, value: Float[Tensor, "R W D"]) -> tuple[Float[Tensor, "R W D"], Trail]:
        """Evaluate the tokens; the value depends on the trail in nothing."""
        ...


@runtime_checkable
class CausalCell(Cell, Protocol):
    """A cell in which no token reads a later one, so that a window can slide over it."""

    def window(
        self, rows: Int[Tensor, " R"], tokens: Int[Tensor, "R W"], carry: Any
    ) -> WindowedCell:
        """Return some sequences' tokens: a row of consecutive positions for each.

        ``carry`` comes from one of this cell's trails and holds what lies before them; None where
        they are the cell's first.
        """
        ...


@runtime_checkable
class SteppingCell(Protocol):
    """A cell that can take a damped step by itself, in fewer passes; its windows can as well.

    Attributes
    ----------
    measure
        The residual that its steps come with.
    """

    measure: Measure

    def iterate(
        self, value: Float[Tensor, "B L D"], damping: float, keeps_trail: bool
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L"], Trail | None]:
        """Return ``z + damping * (f(z) - z)``, each token's residual, and a trail.

        The trail is None unless it is asked for.
        """
        ...


def steps_itself(cell: object, measure: Measure) -> TypeGuard[SteppingCell]:
    """Return whether a cell takes damped steps by itself and measures them as asked."""
    return isinstance(cell, SteppingCell) and cell.measure is measure


def evaluate_checked(cell: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """Evaluate a cell; a ValueError where what comes back is no longer of the value's kind."""
    evaluated = cell(value)
    for name in ("shape", "dtype", "device"):
        before, after = getattr(value, name), getattr(evaluated, name)
        if before != after:
            before, after = (tuple(x) if name == "shape" else x for x in (before, after))
            raise ValueError(
                f"the cell changes the {name} of its state from {before} to {after}; a fixed "
                "point needs them equal"
            )
    return evaluated
