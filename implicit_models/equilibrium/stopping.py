"""When the search of a sequence, or of a token in a window, ends."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from implicit_models.equilibrium.checks import check_count, check_positive


def relative_residual(
    value: Float[Tensor, "B L D"], evaluated: Float[Tensor, "B L D"]
) -> Float[Tensor, "B L"]:
    """Return ``|f(z) - z| / |f(z)|`` for each token.

    Where f(z) vanishes it is a large finite number, where f(z) overflows it is infinite.
    """
    distance = torch.linalg.vector_norm(evaluated - value, dim=-1)
    size = torch.linalg.vector_norm(evaluated, dim=-1)
    limits = torch.finfo(size.dtype)
    ratio = distance / torch.maximum(size, distance * limits.eps).clamp_min_(limits.tiny)
    return ratio.masked_fill_(size.isinf(), torch.inf)


def absolute_residual(
    value: Float[Tensor, "B L D"], evaluated: Float[Tensor, "B L D"]
) -> Float[Tensor, "B L"]:
    """Return ``|f(z) - z|`` for each token."""
    return torch.linalg.vector_norm(evaluated - value, dim=-1)


Measure = Callable[[Tensor, Tensor], Tensor]


@runtime_checkable
class Stopping(Protocol):
    """A rule for when a search ends. Rules are frozen dataclasses.

    Attributes
    ----------
    can_converge
        Whether a search may end before its last step, because it has converged. A window commits
        tokens as they converge and needs such a rule.
    """

    can_converge: ClassVar[bool]

    @property
    def measure(self) -> Measure:
        """How a token's residual is measured."""
        ...

    @property
    def max_steps(self) -> int:
        """The most evaluations a sequence, or a token in a window, may take."""
        ...

    def converged(self, residual: Tensor) -> Tensor:
        """Return for each residual, of whatever shape, whether its search has converged."""
        ...


@dataclass(frozen=True)
class FixedSteps:
    """Evaluate the cell ``num_steps`` times, whatever the residual."""

    can_converge: ClassVar[bool] = False
    num_steps: int
    measure: Measure = relative_residual

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps, minimum=0)

    @property
    def max_steps(self) -> int:
        """The most evaluations a sequence may take."""
        return self.num_steps

    def converged(self, residual: Tensor) -> Tensor:
        """Return for each sequence whether it may leave: never before the last step."""
        return torch.zeros_like(residual, dtype=torch.bool)


@dataclass(frozen=True)
class ResidualBelow:
    """End once the residual is below ``tolerance``, or after ``max_steps``.

    ``measure`` is `relative_residual` or `absolute_residual`. In a window ``max_steps`` is
    each token's own, counted from when all before it have ended.
    """

    can_converge: ClassVar[bool] = True
    tolerance: float
    max_steps: int
    measure: Measure = relative_residual

    def __post_init__(self) -> None:
        check_positive("tolerance", self.tolerance)
        check_count("max_steps", self.max_steps)

    def converged(self, residual: Tensor) -> Tensor:
        """Return where the residual is below the tolerance."""
        return residual < self.tolerance
