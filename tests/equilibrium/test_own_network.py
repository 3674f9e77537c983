"""The network of docs/equilibrium.md, which is no language model: the very lines, run."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from implicit_models.equilibrium import (
    Anderson,
    BestSoFar,
    Broyden,
    ImplicitFunction,
    Phantom,
    Picard,
    ResidualBelow,
    Unrolled,
)
from tests.markdown import python_blocks

DOCUMENT = Path(__file__).parents[2] / "docs" / "equilibrium.md"
TIGHT = ResidualBelow(1e-13, max_steps=1000)


def example() -> str:
    (block,) = [block for block in python_blocks(DOCUMENT) if "class Equilibrium" in block]
    return block


@pytest.fixture(scope="module")
def trained() -> SimpleNamespace:
    """Return the names that the lines define, after they have run."""
    printed: list[Tensor] = []
    names = {"__name__": __name__, "print": printed.append}
    with torch.random.fork_rng():
        exec(compile(example(), DOCUMENT.name, "exec"), names)
    return SimpleNamespace(**names, printed=printed)


def gradients(network: nn.Module, points: Tensor, arms: Tensor) -> list[Tensor]:
    loss = nn.functional.cross_entropy(network(points), arms)
    return list(torch.autograd.grad(loss, list(network.parameters())))


@pytest.fixture(scope="module")
def exact(trained):
    """Return the trained network in float64, points, arms, and autograd's gradient."""
    network = trained.network.double().eval()  # the norm's estimate stays as it is
    with torch.random.fork_rng():
        torch.manual_seed(1)
        points, arms = trained.spirals(16)
    points = points.double()
    cell = network.cell(points)
    value = torch.zeros_like(cell.injection)
    for _ in range(400):
        value = cell(value)
    assert (cell(value) - value).abs().max() < 1e-13
    loss = nn.functional.cross_entropy(network.head(value)[:, 0], arms)
    expected = torch.autograd.grad(loss, list(network.parameters()))
    return network, points, arms, expected


def test_it_learns(trained):
    (accuracy,) = trained.printed
    assert accuracy > 0.95
    assert trained.loss < 0.2  # of the last batch; log 2 before training


@pytest.mark.parametrize("solver", [Picard(), Anderson(), BestSoFar(Broyden(history=20))], ids=str)
def test_the_implicit_gradient_is_that_of_many_iterations(exact, solver):
    network, points, arms, expected = exact
    network.solver, network.stopping = solver, TIGHT
    network.gradient = ImplicitFunction(solver, TIGHT)
    for found, right in zip(gradients(network, points, arms), expected, strict=True):
        assert right.abs().max() > 1e-6
        torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-10)


def test_phantom_and_unrolled_come_near_it(exact):
    network, points, arms, expected = exact
    network.solver, network.stopping = Picard(), TIGHT
    whole = torch.cat([each.flatten() for each in expected])

    def error(gradient: Phantom | Unrolled) -> float:
        network.gradient = gradient
        found = torch.cat([each.flatten() for each in gradients(network, points, arms)])
        return float((found - whole).norm() / whole.norm())

    phantom = [error(Phantom(steps, damping=0.9)) for steps in (1, 5, 25, 400)]
    unrolled = [error(Unrolled(steps)) for steps in (1, 5, 25, 400)]
    for errors in (phantom, unrolled):
        assert errors == sorted(errors, reverse=True)
        assert errors[-1] < 1e-9


def test_the_implicit_gradient_is_finite_differences(exact):
    network, points, arms, _ = exact
    network.solver, network.stopping = Picard(), TIGHT
    network.gradient = ImplicitFunction(Picard(), TIGHT)
    few = points[:3].clone().requires_grad_()
    assert torch.autograd.gradcheck(network, few)
