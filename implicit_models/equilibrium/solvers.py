"""How a search goes from one iterate to the next.

A solver is a value; what it remembers is a state handed in and out. A state may be updated in
place: go on with the one that comes back.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.checks import check_damping
from implicit_models.equilibrium.search import Search


@runtime_checkable
class SolverState(Protocol):
    """What a solver remembers of a search."""

    def select(self, rows: Int[Tensor, " R"]) -> "SolverState":
        """Return what it remembers of some of the batch's sequences."""
        ...


class Solver(ABC):
    """A way to step. Solvers are frozen dataclasses.

    Attributes
    ----------
    is_tokenwise
        Whether each token steps by itself and nothing is remembered between steps, so that a
        window may slide over the tokens.
    """

    is_tokenwise: ClassVar[bool] = False

    @abstractmethod
    def begin(self, start: Float[Tensor, "B L D"]) -> SolverState:
        """Return the state before the first step."""

    @abstractmethod
    def step(
        self,
        state: Any,
        value: Float[Tensor, "B L D"],
        evaluated: Float[Tensor, "B L D"],
        residual: Float[Tensor, "B L"],
    ) -> tuple[Float[Tensor, "B L D"], SolverState]:
        """Return the next iterate, from the present one, the cell's value and its residual."""

    def advance(
        self, state: Any, search: Search
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L"], SolverState]:
        """Evaluate the cell at the search's iterate; return the next, and the residual there."""
        value = search.value
        evaluated, residual = search.evaluate()
        with torch.autocast(value.device.type, enabled=False):  # it would round the products
            following, state = self.step(state, value, evaluated, residual)
        return following, residual, state

    def answer(
        self, state: Any, following: Float[Tensor, "B L D"], worst: Float[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, " B"]]:
        """Return what a search that ends now returns, and the residual that led to it.

        By default the iterate that would have been evaluated next.
        """
        return following, worst


class Nothing(NamedTuple):
    """The state of a solver that remembers nothing."""

    def select(self, rows: Int[Tensor, " R"]) -> "Nothing":
        """Return nothing."""
        return self


@dataclass(frozen=True)
class Picard(Solver):
    """Move by ``damping`` towards the cell's value: ``z <- z + damping * (f(z) - z)``."""

    is_tokenwise: ClassVar[bool] = True
    damping: float = 1.0

    def __post_init__(self) -> None:
        check_damping(self.damping)

    def begin(self, start: Tensor) -> Nothing:
        """Remember nothing."""
        return Nothing()

    def step(
        self, state: Nothing, value: Tensor, evaluated: Tensor, residual: Tensor
    ) -> tuple[Tensor, Nothing]:
        """Return the next iterate."""
        if self.damping == 1.0:
            return evaluated, state
        return value.lerp(evaluated, self.damping), state

    def advance(self, state: Nothing, search: Search) -> tuple[Tensor, Tensor, SolverState]:
        """Return what `Solver.advance` does, in the cell's own damped step where it has one."""
        stepped = search.damped_step(self.damping)
        if stepped is None:
            return super().advance(state, search)
        return *stepped, state


class Best(NamedTuple):
    """The state of `BestSoFar`: its solver's, and the best iterate with its residual."""

    inner: Any
    value: Float[Tensor, "B L D"]
    residual: Float[Tensor, " B"]

    def select(self, rows: Int[Tensor, " R"]) -> "Best":
        """Return the state of some of the batch's sequences."""
        return Best(self.inner.select(rows), self.value[rows], self.residual[rows])


@dataclass(frozen=True)
class BestSoFar(Solver):
    """Step as ``solver`` does, and return the iterate that followed the smallest residual.

    For searches that may wander off before they run out of steps. It costs one more copy of the
    state. Residuals are a sequence's worst token's.
    """

    solver: Solver

    def begin(self, start: Tensor) -> Best:
        """Return the state before the first step: the start, infinitely bad."""
        residual = torch.full(start.shape[:1], torch.inf, dtype=start.dtype, device=start.device)
        return Best(self.solver.begin(start), start, residual)

    def step(
        self, state: Best, value: Tensor, evaluated: Tensor, residual: Tensor
    ) -> tuple[Tensor, Best]:
        """Return the solver's next iterate."""
        following, inner = self.solver.step(state.inner, value, evaluated, residual)
        worst = worst_token(residual)
        better = worst < state.residual
        best = torch.where(better[:, None, None], following, state.value)
        return following, Best(inner, best, torch.where(better, worst, state.residual))

    def answer(self, state: Best, following: Tensor, worst: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best iterate, with its residual."""
        return state.value, state.residual


def worst_token(residual: Float[Tensor, "B L"]) -> Float[Tensor, " B"]:
    """Return each sequence's largest residual; 0 where it has no token."""
    return residual.amax(1) if residual.shape[1] else residual.new_zeros(residual.shape[0])
