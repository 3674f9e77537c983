"""Gradients at a fixed point: finite differences, the closed form, and the phantom's approach."""

import re
from dataclasses import dataclass

import pytest
import torch

from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.broyden import Broyden
from implicit_models.equilibrium.cells import Cell
from implicit_models.equilibrium.gradients import Gradient, ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase, bounded_phase, free_phase
from implicit_models.equilibrium.solvers import Picard, Solver
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow
from tests.equilibrium.cells import CHANGES, AffineCell, ChangingCell, affine_cell


def name(gradient: Gradient) -> str:
    """Name a test; every process must give it the same name."""
    return re.sub(r"<function (\w+) at \w+>", r"\1", str(gradient))


def gradient_of_offset(gradient: Unrolled | Phantom, from_fixed_point: bool) -> torch.Tensor:
    cell = affine_cell([0.6, 0.3])
    offset = cell.offset.clone().requires_grad_()
    cell = AffineCell(cell.matrix, offset)
    value = torch.zeros_like(offset)
    if from_fixed_point:
        value = find_fixed_point(cell, value, Picard(), ResidualBelow(1e-14, 500)).value
    gradient(cell, value).sin().sum().backward()
    assert offset.grad is not None
    return offset.grad


def exact_gradient() -> torch.Tensor:
    cell = affine_cell([0.6, 0.3])
    offset = cell.offset.clone().requires_grad_()
    AffineCell(cell.matrix, offset).fixed_point().sin().sum().backward()
    assert offset.grad is not None
    return offset.grad


def test_many_unrolled_steps_give_the_exact_gradient() -> None:
    torch.testing.assert_close(gradient_of_offset(Unrolled(100), False), exact_gradient())


def test_unrolled_gradient_is_finite_differences() -> None:
    cell = affine_cell([0.6])

    def unrolled(offset: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return Unrolled(3)(AffineCell(matrix, offset), torch.zeros_like(offset))

    inputs = (cell.offset.requires_grad_(), cell.matrix.requires_grad_())
    assert torch.autograd.gradcheck(unrolled, inputs)


@pytest.mark.parametrize("damping", [0.5, 0.8, 1.0])
def test_phantom_approaches_the_exact_gradient(damping: float) -> None:
    exact = exact_gradient()
    errors = [
        (gradient_of_offset(Phantom(steps, damping), True) - exact).norm().item()
        for steps in (1, 3, 10, 200)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-10 * exact.norm()


def test_one_phantom_step_is_the_damped_jacobian() -> None:
    cell = affine_cell([0.6, 0.3])
    offset = cell.offset.clone().requires_grad_()
    solution = AffineCell(cell.matrix, cell.offset).fixed_point()
    Phantom(1, 0.7)(AffineCell(cell.matrix, offset), solution).sum().backward()
    torch.testing.assert_close(offset.grad, torch.full_like(offset, 0.7))


# Against finite differences, for a cell that is not affine and sequences that are not alike.

TIGHT = ResidualBelow(1e-13, 3000)
GRADIENTS = [
    Unrolled(400),
    Unrolled(400, checkpointing=True),
    Phantom(600, 0.8),
    Phantom(600, 0.8, checkpointing=True),
    ImplicitFunction(Picard(), TIGHT),
    ImplicitFunction(Anderson(), TIGHT),
    ImplicitFunction(Broyden(), TIGHT),
]


@dataclass
class SineCell:
    """``f(z) = sin(z @ matrix) + offset``, counting its evaluations."""

    matrix: torch.Tensor  # (B, D, D)
    offset: torch.Tensor  # (B, L, D)
    num_evaluations: int = 0

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        self.num_evaluations += 1
        return (value @ self.matrix).sin() + self.offset

    def select(self, rows: torch.Tensor) -> "SineCell":
        return SineCell(self.matrix[rows], self.offset[rows])


def sine_cell(contractions: list[float], requires_grad: bool = False) -> SineCell:
    affine = affine_cell(contractions)
    return SineCell(
        affine.matrix.requires_grad_(requires_grad), affine.offset.requires_grad_(requires_grad)
    )


def fixed_point(cell: Cell, like: torch.Tensor) -> torch.Tensor:
    return find_fixed_point(cell, torch.zeros_like(like), Picard(), TIGHT).value


@pytest.mark.parametrize("gradient", GRADIENTS, ids=name)
def test_every_gradient_is_the_finite_difference(gradient: Gradient) -> None:
    cell = sine_cell([0.9, 0.05, 0.5], requires_grad=True)
    value = gradient(cell, fixed_point(cell, cell.offset))
    value.square().sum().backward()
    draw = torch.Generator().manual_seed(3)
    for name in ("matrix", "offset"):
        tensor = getattr(cell, name)
        direction = torch.randn(tensor.shape, generator=draw, dtype=torch.float64)
        losses = []
        for sign in (1, -1):
            moved = sine_cell([0.9, 0.05, 0.5])
            getattr(moved, name).add_(direction, alpha=sign * 1e-5)
            losses.append(fixed_point(moved, moved.offset).square().sum())
        slope = (losses[0] - losses[1]) / 2e-5
        torch.testing.assert_close((tensor.grad * direction).sum(), slope, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("solver", [Picard(), Anderson(), Broyden()])
def test_the_implicit_gradient_of_a_sequence_does_not_see_its_mates(solver: Solver) -> None:
    contractions = [0.9, 0.05, 0.5]
    gradient = ImplicitFunction(solver, ResidualBelow(1e-8, 3000))
    together = sine_cell(contractions, requires_grad=True)
    weight = torch.tensor([1.0, 0.0, 3.0])[:, None, None]
    value = fixed_point(together, together.offset)
    num_before = together.num_evaluations
    (weight * gradient(together, value)).sum().backward()
    assert together.num_evaluations == num_before + 1
    for row in range(3):
        alone = SineCell(
            together.matrix[row : row + 1].detach().requires_grad_(),
            together.offset[row : row + 1].detach().requires_grad_(),
        )
        (weight[row] * gradient(alone, value[row : row + 1])).sum().backward()
        for name in ("matrix", "offset"):
            torch.testing.assert_close(
                getattr(together, name).grad[row],
                getattr(alone, name).grad[0],
                rtol=1e-12,
                atol=1e-12,
            )


@pytest.mark.parametrize("solver", [Picard(), Anderson(), Broyden()])
def test_an_adjoint_that_explodes_spoils_no_other(solver: Solver) -> None:
    gradients = []
    for contractions in ([0.5, 0.3], [0.5, 0.3, 1e90]):
        cell = affine_cell([*contractions, 0.0][:3])
        cell.offset.requires_grad_()
        value = torch.zeros_like(cell.offset)
        ImplicitFunction(solver, ResidualBelow(1e-12, 100))(cell, value).sin().sum().backward()
        assert cell.offset.grad is not None
        gradients.append(cell.offset.grad)
    assert gradients[1].isfinite().all()
    torch.testing.assert_close(gradients[0][:2], gradients[1][:2], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("make", [Unrolled, lambda k, **kw: Phantom(k, 0.7, **kw)])
def test_checkpointing_trades_evaluations_for_memory(make) -> None:
    kept, grads, evaluations = [], [], []
    for checkpointing in (False, True):
        cell, sizes = sine_cell([0.9, 0.5], requires_grad=True), {}

        def pack(tensor: torch.Tensor, sizes=sizes) -> torch.Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            value = make(20, checkpointing=checkpointing)(cell, torch.zeros_like(cell.offset))
            loss = value.square().sum()
        kept.append(sum(sizes.values()))
        loss.backward()
        grads.append((cell.matrix.grad, cell.offset.grad))
        evaluations.append(cell.num_evaluations)
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))
    assert evaluations == [20, 40]
    assert kept[1] < 0.6 * kept[0]


@pytest.mark.parametrize("gradient", GRADIENTS, ids=name)
def test_without_gradient_the_value_is_the_same_and_there_is_no_graph(gradient: Gradient) -> None:
    cell = sine_cell([0.9, 0.5], requires_grad=True)
    start = torch.zeros_like(cell.offset)
    expected = gradient(cell, start)
    with torch.no_grad():
        value = gradient(cell, start)
    assert expected.requires_grad and not value.requires_grad
    assert torch.equal(value, expected)


@pytest.mark.parametrize("gradient", [Unrolled(2), Phantom(2, 0.7), GRADIENTS[4]], ids=name)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (1, 1, 4)])
def test_small_shapes(shape: tuple[int, int, int], gradient: Gradient) -> None:
    cell = AffineCell(torch.eye(4).double() * 0.5, torch.ones(shape).double().requires_grad_())
    value = gradient(cell, torch.zeros(shape, dtype=torch.float64))
    value.sum().backward()
    assert cell.offset.grad is not None and cell.offset.grad.shape == shape
    assert (cell.offset.grad >= 0.7).all()


def test_the_implicit_gradient_is_differentiable_once() -> None:
    cell = sine_cell([0.5], requires_grad=True)
    value = ImplicitFunction(Picard(), TIGHT)(cell, torch.zeros_like(cell.offset))
    (gradient,) = torch.autograd.grad(value.square().sum(), cell.offset, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("gradient", [Unrolled(2), Phantom(2, 0.7), GRADIENTS[4]], ids=name)
@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_a_cell_that_changes_its_state_is_named(change, named: str, gradient: Gradient) -> None:
    with pytest.raises(ValueError, match=f"the cell changes the {named}"):
        gradient(ChangingCell(change), torch.zeros(2, 3, 4, dtype=torch.float64))


def test_impossible_values_are_named() -> None:
    with pytest.raises(ValueError, match="num_steps is 0"):
        Unrolled(0)
    with pytest.raises(ValueError, match="damping is 2.5"):
        Phantom(3, 2.5)


def test_bounded_and_free_differ_only_in_their_phase() -> None:
    bounded, free = bounded_phase(4), free_phase(0.05, 16, 3, 0.8)
    assert type(bounded) is type(free)
    assert bounded == Phase(Picard(), FixedSteps(0), Unrolled(4))
    assert free == Phase(Picard(0.8), ResidualBelow(0.05, 16), Phantom(3, 0.8))


def test_undamped_phantom_steps_from_zero_are_the_bounded_phase() -> None:
    results = []
    for gradient in (Unrolled(4), Phantom(4, 1.0)):
        cell = affine_cell([0.6, 0.3])
        offset = cell.offset.clone().requires_grad_()
        value = gradient(AffineCell(cell.matrix, offset), torch.zeros_like(offset))
        value.sin().sum().backward()
        results.append((value, offset.grad))
    for bounded, phantom in zip(*results, strict=True):
        assert torch.equal(bounded, phantom)
