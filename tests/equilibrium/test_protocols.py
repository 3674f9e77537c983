"""The loop knows no solver, rule or cell: those of this file go through it as ours do."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from implicit_models.equilibrium.gradients import Gradient, ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.search import Search
from implicit_models.equilibrium.solution import Result
from implicit_models.equilibrium.solvers import Nothing, Picard, Solver
from implicit_models.equilibrium.stopping import FixedSteps, Measure, ResidualBelow, Stopping
from implicit_models.equilibrium.whole import WholeSequences
from implicit_models.equilibrium.window import SlidingWindow, Window

WINDOWS = pytest.mark.parametrize("window", [None, Window(2, 2), Window(1, 1)], ids=str)


def largest_change(value: torch.Tensor, evaluated: torch.Tensor) -> torch.Tensor:
    return (evaluated - value).abs().amax(-1)


@dataclass(frozen=True)
class ChangeBelow:
    """A rule of this file: no number of a token changes by more than ``most``."""

    can_converge: ClassVar[bool] = True
    most: float
    max_steps: int = 200
    measure: Measure = largest_change

    def converged(self, residual: torch.Tensor) -> torch.Tensor:
        return residual <= self.most


@dataclass(frozen=True)
class Alternating(Solver):
    """A solver of this file: it steps by one damping where the residual is large, else by 1."""

    is_tokenwise: ClassVar[bool] = True
    damping: float = 0.7

    def begin(self, start: torch.Tensor) -> Nothing:
        return Nothing()

    def step(
        self, state: Nothing, value: torch.Tensor, evaluated: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, Nothing]:
        damped = torch.where(residual > 0.1, self.damping, 1.0)[..., None]
        return value + damped * (evaluated - value), state


@dataclass
class Halving:
    """A causal cell of this file, ``z -> z / 2 + constant``; it counts what it is asked."""

    constant: torch.Tensor
    asked: dict[str, int] = field(default_factory=lambda: {"evaluations": 0, "own steps": 0})
    measure: ClassVar[Measure] = staticmethod(largest_change)

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        self.asked["evaluations"] += 1
        return value / 2 + self.constant

    def evaluate(self, value: torch.Tensor) -> tuple[torch.Tensor, "Halving"]:
        return self(value), self

    def iterate(
        self, value: torch.Tensor, damping: float, keeps_trail: bool
    ) -> tuple[torch.Tensor, torch.Tensor, "Halving | None"]:
        self.asked["own steps"] += 1
        evaluated = value / 2 + self.constant
        following = value.lerp(evaluated, damping)
        return following, largest_change(value, evaluated), self if keeps_trail else None

    def carry(self, counts: torch.Tensor | None = None) -> "Halving":
        return self

    def select(self, rows: torch.Tensor) -> "Halving":
        return Halving(self.constant[rows], self.asked)

    def window(self, rows: torch.Tensor, tokens: torch.Tensor, carry: Any) -> "Halving":
        return Halving(self.constant[rows[:, None], tokens], self.asked)


def halving(batch: int = 3, length: int = 5) -> Halving:
    draw = torch.Generator().manual_seed(0)
    return Halving(torch.randn(batch, length, 2, generator=draw).double() * 4)


@WINDOWS
@pytest.mark.parametrize("lengths", [None, [5, 0, 2]])
@pytest.mark.parametrize("solver", [Picard(0.9), Alternating()])
def test_a_rule_a_solver_and_a_cell_of_anybodys(
    solver: Solver, lengths: list[int] | None, window: Window | None
) -> None:
    cell, rule = halving(), ChangeBelow(1e-9)
    assert isinstance(rule, Stopping)
    solution = find_fixed_point(
        cell,
        torch.zeros_like(cell.constant),
        solver,
        rule,
        window=window,
        lengths=None if lengths is None else torch.tensor(lengths),
    )
    assert (solution.result == Result.CONVERGED).all()
    inside = torch.arange(5) < torch.tensor(lengths or [5] * 3)[:, None]
    torch.testing.assert_close(solution.value[inside], 2 * cell.constant[inside])
    assert (solution.residual[solution.steps > 0] <= 1e-9).all()


@WINDOWS
@pytest.mark.parametrize(
    ("solver", "stopping", "steps_itself"),
    [
        (Picard(0.8), ChangeBelow(1e-6), True),
        (Picard(0.8), ResidualBelow(1e-6, 200, largest_change), True),
        (Picard(0.8), ResidualBelow(1e-6, 200), False),  # it measures otherwise
        (Alternating(), ChangeBelow(1e-6), False),
    ],
)
def test_a_cell_steps_itself_for_a_plain_damped_step_in_its_own_measure(
    solver: Solver, stopping: Stopping, steps_itself: bool, window: Window | None
) -> None:
    cell = halving()
    start = torch.zeros_like(cell.constant)
    solution = find_fixed_point(cell, start, solver, stopping, window=window)
    made, other = ("own steps", "evaluations") if steps_itself else ("evaluations", "own steps")
    assert cell.asked[made] == solution.depth.max() and cell.asked[other] == 0


def test_both_searches_keep_the_protocol() -> None:
    cell, stopping = halving(), ChangeBelow(1e-6)
    start = torch.zeros_like(cell.constant)
    whole = WholeSequences(cell, start, Picard(), stopping, None, 1)
    slid = SlidingWindow(cell, start, Picard(), stopping, Window(2, 1), None, False, 1)
    assert isinstance(whole, Search) and isinstance(slid, Search)


@WINDOWS
def test_a_solution_has_one_shape(window: Window | None) -> None:
    cell = halving(3, 5)
    stopping = ResidualBelow(1e-6, 200)
    start = torch.zeros_like(cell.constant)
    solution = find_fixed_point(cell, start, Picard(), stopping, window=window)
    searches = (3, 1 if window is None else 5)
    for name in ("steps", "residual", "result"):
        found = getattr(solution, name)
        assert found.shape == searches and found.expand(3, 5).shape == (3, 5)
    order = torch.tensor([[4, 3, 2, 1, 0], [0, 1, 2, 3, 4], [1, 0, 2, 4, 3]])
    moved = solution.reordered(order)
    for name in ("steps", "residual", "result"):
        expected = getattr(solution, name).expand(3, 5).gather(1, order)
        assert torch.equal(getattr(moved, name).expand(3, 5), expected)
        assert getattr(moved, name).shape == searches
    assert torch.equal(moved.value, solution.value.gather(1, order[..., None].expand(3, 5, 2)))
    assert moved.metrics().keys() == solution.metrics().keys()


@dataclass
class Counting:
    """``weight * z + 1``, counting evaluations and vector-Jacobian products."""

    weight: torch.Tensor
    counts: dict[str, int]

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        self.counts["evaluations"] += 1
        return _Counted.apply(value, self.weight, self.counts)

    def select(self, rows: torch.Tensor) -> "Counting":
        return self


class _Counted(torch.autograd.Function):
    """`Counting` as autograd sees it: its backward pass counts itself."""

    @staticmethod
    def forward(ctx, value, weight, counts):
        ctx.save_for_backward(value, weight)
        ctx.counts = counts
        return weight * value + 1

    @staticmethod
    def backward(ctx, gradient):
        ctx.counts["products"] += 1
        value, weight = ctx.saved_tensors
        return gradient * weight, (gradient * value).sum(), None


@pytest.mark.parametrize(
    "gradient",
    [
        Unrolled(4),
        Unrolled(4).with_checkpointing(),
        Phantom(3, 0.8),
        Phantom(3, 0.8).with_checkpointing(),
        ImplicitFunction(Picard(0.9), FixedSteps(6)),
        ImplicitFunction(Picard(0.9), FixedSteps(6)).with_checkpointing(),
    ],
)
def test_a_gradient_takes_as_many_evaluations_as_it_says(gradient: Gradient) -> None:
    weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    counts = {"evaluations": 0, "products": 0}
    value = gradient(Counting(weight, counts), torch.ones(2, 3, 4, dtype=torch.float64))
    assert counts == {"evaluations": gradient.num_steps, "products": 0}
    value.sum().backward()
    assert counts["evaluations"] == gradient.num_steps + gradient.num_repeated
    assert counts["products"] == gradient.num_steps + gradient.max_products
    assert weight.grad is not None


@pytest.mark.parametrize("gradient", [Unrolled(4), Phantom(3, 0.8)])
def test_the_checkpointed_form_repeats_every_step(gradient: Gradient) -> None:
    assert gradient.num_repeated == 0
    repeated = gradient.with_checkpointing()
    assert repeated.num_repeated == repeated.num_steps == gradient.num_steps
    assert repeated.with_checkpointing() == repeated
    solving = ImplicitFunction(Picard(), FixedSteps(2))
    assert solving.with_checkpointing() == solving
