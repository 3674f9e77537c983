"""How a gradient is taken at, or on the way to, a fixed point. Each serves any search."""

import dataclasses
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from implicit_models.equilibrium.cells import Cell, evaluate_checked
from implicit_models.equilibrium.checks import check_count, check_damping
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.solvers import Solver
from implicit_models.equilibrium.stopping import Stopping


@runtime_checkable
class Gradient(Protocol):
    """A way to take a gradient from the point found. Gradients are frozen dataclasses."""

    @property
    def num_steps(self) -> int:
        """Evaluations of the cell that follow the search and are differentiated."""
        ...

    @property
    def num_repeated(self) -> int:
        """Evaluations that the backward pass makes again, in order not to keep them."""
        ...

    @property
    def max_products(self) -> int:
        """The most vector-Jacobian products of one evaluation that the backward pass takes.

        Besides the one by which each evaluation is differentiated.
        """
        ...

    def with_checkpointing(self) -> "Gradient":
        """Return the gradient that keeps the least for the backward pass, itself if it does so."""
        ...

    def __call__(self, cell: Cell, value: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Return what follows ``value``, with its gradient."""
        ...


class _Iterating:
    """What `Unrolled` and `Phantom` answer alike: they differentiate the iterations they make."""

    num_steps: int
    checkpointing: bool

    @property
    def num_repeated(self) -> int:
        """Evaluations that the backward pass makes again, in order not to keep them."""
        return self.num_steps if self.checkpointing else 0

    @property
    def max_products(self) -> int:
        """None: no system is solved."""
        return 0

    def with_checkpointing(self) -> Gradient:
        """Return the gradient that evaluates each iteration again in the backward pass."""
        return dataclasses.replace(self, checkpointing=True)  # type: ignore[type-var]


@dataclass(frozen=True)
class Unrolled(_Iterating):
    """Differentiate through ``num_steps`` plain iterations (backpropagation through the loop).

    With ``checkpointing`` each iteration keeps its input alone and is evaluated again in the
    backward pass: memory for one iteration's activations, and one more evaluation each.
    """

    num_steps: int
    checkpointing: bool = False

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)

    def __call__(self, cell: Cell, value: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Iterate from ``value`` with gradient."""
        return _iterate_with_gradient(cell, value, self.num_steps, 1.0, self.checkpointing)


@dataclass(frozen=True)
class Phantom(_Iterating):
    """Differentiate through ``num_steps`` damped iterations from the point found.

    The phantom gradient (Geng et al. 2021): a truncated, damped Neumann series of the implicit
    function theorem's inverse, whose memory does not grow with the search. ``checkpointing`` as
    in `Unrolled`.
    """

    num_steps: int
    damping: float
    checkpointing: bool = False

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)
        check_damping(self.damping)

    def __call__(self, cell: Cell, value: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Iterate from ``value`` with gradient."""
        return _iterate_with_gradient(cell, value, self.num_steps, self.damping, self.checkpointing)


@dataclass(frozen=True)
class ImplicitFunction:
    """Differentiate the fixed point itself, by the implicit function theorem.

    The backward pass solves ``g = v + J^T g`` for each sequence, ``J`` being the cell's
    Jacobian at the point found, with vector-Jacobian products of one evaluation of the cell
    (Bai et al. 2019). ``solver`` and ``stopping`` are of that solve. A sequence whose solve does
    not end passes on what it has, without a word: watch the gradient's norm.

    Exact where the search was; memory for one evaluation. Differentiable once, and not under
    torch.func's transforms (take `Unrolled` there).
    """

    solver: Solver
    stopping: Stopping

    @property
    def num_steps(self) -> int:
        """Evaluations of the cell after the search."""
        return 1

    @property
    def num_repeated(self) -> int:
        """Evaluations that the backward pass makes again: none."""
        return 0

    @property
    def max_products(self) -> int:
        """The most evaluations that the backward solve may take, each of them a product."""
        return self.stopping.max_steps

    def with_checkpointing(self) -> Gradient:
        """Return itself: it keeps one evaluation, which every product needs."""
        return self

    def __call__(self, cell: Cell, value: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Evaluate the cell at ``value`` with the fixed point's gradient."""
        if not torch.is_grad_enabled():
            return cell(value)
        anchor = value.detach().requires_grad_()
        return _AtFixedPoint.apply(evaluate_checked(cell, anchor), anchor, self)


def _iterate_with_gradient(
    cell: Cell, value: Tensor, num_steps: int, damping: float, checkpointing: bool
) -> Tensor:
    def step(value: Tensor) -> Tensor:
        evaluated = evaluate_checked(cell, value)
        return evaluated if damping == 1.0 else value.lerp(evaluated, damping)

    for _ in range(num_steps):
        if checkpointing and torch.is_grad_enabled():
            value = checkpoint(step, value, use_reentrant=False)
        else:
            value = step(value)
    return value


class _AtFixedPoint(torch.autograd.Function):
    """Hands a value on, and to its graph the gradient that solves ``g = v + J^T g``."""

    @staticmethod
    def forward(ctx, evaluated, anchor, gradient):
        ctx.graph = evaluated, anchor, gradient
        return evaluated.detach().clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, incoming):
        evaluated, anchor, gradient = ctx.graph
        cell = _Adjoint(evaluated, anchor, incoming, torch.arange(len(incoming)))
        solution = find_fixed_point(cell, incoming, gradient.solver, gradient.stopping)
        return solution.value, None, None


@dataclass(frozen=True)
class _Adjoint:
    """``g -> v + J^T g`` for some of the sequences: itself a cell."""

    evaluated: Float[Tensor, "B L D"]
    anchor: Float[Tensor, "B L D"]
    incoming: Float[Tensor, "R L D"]
    rows: Int[Tensor, " R"]

    def __call__(self, value: Float[Tensor, "R L D"]) -> Float[Tensor, "R L D"]:
        vector = value
        if len(self.rows) < len(self.evaluated):
            vector = torch.zeros_like(self.evaluated)
            vector[self.rows] = value
        with torch.enable_grad():
            (product,) = torch.autograd.grad(self.evaluated, self.anchor, vector, retain_graph=True)
        if len(self.rows) < len(self.evaluated):
            product = product[self.rows]
        return self.incoming + product

    def select(self, rows: Int[Tensor, " K"]) -> "_Adjoint":
        return _Adjoint(
            self.evaluated, self.anchor, self.incoming[rows], self.rows[rows.to(self.rows.device)]
        )
