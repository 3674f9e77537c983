"""The window over the model's own cell: duality, gradients, pieces, and what mates may change."""

import pytest
import torch

from implicit_models.equilibrium.gradients import Gradient, ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase, search_phase
from implicit_models.equilibrium.solution import Result
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow
from implicit_models.equilibrium.window import Window
from implicit_models.language_models.modelling import Mamba2LanguageModel
from tests.language_models.models import IMPLICIT, small_model, tokens

TIGHT = ResidualBelow(1e-11, 2000)
NAMES = ["embeddings", "injection.projection.weight", "stack.blocks.0.mixer.A_log"]
NAMES += [f"stack.blocks.1.mixer.{part}" for part in ("in_proj.weight", "conv1d.weight", "D")]


def implicit_model() -> Mamba2LanguageModel:
    model = small_model(IMPLICIT)
    assert isinstance(model, Mamba2LanguageModel)
    return model


def gradients_after(gradient: Gradient, window: Window | None) -> list[torch.Tensor | None]:
    model = implicit_model()
    phase = Phase(Picard(), TIGHT, gradient, window)
    model(tokens(3, 5), phase).logits.sin().sum().backward()
    return [model.get_parameter(name).grad for name in NAMES]


@pytest.mark.parametrize(
    "gradient", [Unrolled(40), Phantom(60, 0.8), ImplicitFunction(Picard(), TIGHT)]
)
def test_every_window_gives_the_gradient_of_the_whole(gradient: Gradient) -> None:
    exact = gradients_after(ImplicitFunction(Picard(), TIGHT), None)
    for width in (1, 3, 20):
        grads = gradients_after(gradient, Window(width, 1))
        torch.testing.assert_close(grads, exact, rtol=1e-7, atol=1e-8)


def test_the_implicit_gradient_after_a_window_is_the_finite_difference() -> None:
    model = implicit_model()
    phase = Phase(Picard(), ResidualBelow(1e-13, 2000), None)
    grads = gradients_after(ImplicitFunction(Picard(), TIGHT), Window(3, 1))
    draw = torch.Generator().manual_seed(0)
    for name, grad in zip(NAMES, grads, strict=True):
        parameter, losses = model.get_parameter(name), []
        direction = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        direction *= parameter.detach().square().mean().sqrt()
        for step in (1e-5, -2e-5):
            with torch.no_grad():
                parameter.add_(direction, alpha=step)
                losses.append(model(tokens(3, 5), phase).logits.sin().sum())
        with torch.no_grad():
            parameter.add_(direction, alpha=1e-5)
        assert grad is not None
        slope = (losses[0] - losses[1]) / 2e-5
        torch.testing.assert_close((grad * direction).sum(), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [1, 3, 20])
def test_pieces_from_carry_to_carry_give_what_the_whole_gives(width: int) -> None:
    model, text = implicit_model(), tokens(2, 8)
    phase = search_phase(1e-11, 2000, 1.0, Window(width, 1))
    whole = model(text, phase, model.initial_carry(2))
    carry, pieces = model.initial_carry(2), []
    for piece in text.split([4, 1, 3], dim=1):
        output = model(piece, phase, carry)
        carry = output.carry
        pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole.logits, rtol=1e-8, atol=1e-9)
    for after, expected in zip(carry.blocks, whole.carry.blocks, strict=True):
        torch.testing.assert_close(after, expected, rtol=1e-8, atol=1e-9)


def test_searching_from_one_carry_twice_is_the_same_to_the_bit() -> None:
    model = implicit_model()
    phase = search_phase(1e-6, 200, 1.0, Window(3))
    carry = model(tokens(3, 4), phase, model.initial_carry(3)).carry
    frozen = [tensor.clone() for block in carry.blocks for tensor in block]
    first, second = (model(tokens(3, 5, seed=1), phase, carry) for _ in "ab")
    assert torch.equal(first.logits, second.logits)
    for name, tensor in vars(first.search).items():
        assert torch.equal(tensor, getattr(second.search, name)), name
    for before, after in zip(frozen, (t for block in carry.blocks for t in block), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_many_other_mates_change_nothing_to_the_bit(dtype: torch.dtype) -> None:
    model = implicit_model().to(dtype)
    text, phase = tokens(5, 9), Phase(Picard(0.8), FixedSteps(12), None)
    expected = model(text, phase)
    for seed in (1, 2):
        other = tokens(5, 9, seed=seed)
        other[2] = text[2]
        output = model(other, phase)
        assert torch.equal(output.logits[2], expected.logits[2])
        assert torch.equal(output.search.value[2], expected.search.value[2])
        assert not torch.equal(output.logits[1], expected.logits[1])


@pytest.mark.parametrize("width", [1, 3, 9])
def test_mates_change_a_window_by_rounding_alone(width: int) -> None:
    model, text = implicit_model(), tokens(4, 9)
    phase = search_phase(1e-5, 200, 1.0, Window(width, 2))
    together = model(text, phase)
    for row in range(4):
        alone = model(text[row : row + 1], phase)
        torch.testing.assert_close(alone.logits[0], together.logits[row], rtol=1e-10, atol=1e-11)
        assert torch.equal(alone.search.steps[0], together.search.steps[row])
        assert alone.search.depth[0] == together.search.depth[row]


@pytest.mark.parametrize("width", [1, 2, 9])
def test_a_poisoned_token_ends_its_sequence_and_keeps_what_was_committed(width: int) -> None:
    model, text = implicit_model(), tokens(3, 9)
    cell, start = model.cell(text)
    expected = find_fixed_point(cell, start, Picard(), TIGHT).value
    with torch.no_grad():
        cell.injection[1, 5] = torch.nan
    solution = find_fixed_point(cell, start, Picard(), TIGHT, window=Window(width))
    kept = [t < max(0, 6 - width) for t in range(9)]
    assert (solution.result[1] == Result.CONVERGED).tolist() == kept
    assert (solution.result[1, ~torch.tensor(kept)] == Result.NON_FINITE).all()
    assert (solution.result[::2] == Result.CONVERGED).all()
    assert solution.value.isfinite().all()
    good = solution.result == Result.CONVERGED
    torch.testing.assert_close(solution.value[good], expected[good], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("window", [None, Window(3)])
def test_single_tokens_and_single_sequences(window: Window | None) -> None:
    model, text = implicit_model(), tokens(3, 4)
    phase = search_phase(1e-11, 2000, 1.0, window)
    whole = model(text, phase).logits
    for part in (text[:1], text[:, :1], text[:1, :1]):
        logits = model(part, phase).logits
        expected = whole[: part.shape[0], : part.shape[1]]
        torch.testing.assert_close(logits, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("window", [None, Window(3)])
@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
def test_nothing_to_search(shape: tuple[int, int], window: Window | None) -> None:
    model, phase = implicit_model(), search_phase(1e-6, 50, 1.0, window)
    assert model(torch.zeros(shape, dtype=torch.int64), phase).logits.shape == (*shape, 11)


@pytest.mark.parametrize("mate", [12, 20, 40])
@pytest.mark.parametrize("width", [4, 16])
def test_as_many_longer_mates_do_not_change_a_window_to_the_bit(width: int, mate: int) -> None:
    model, text = implicit_model(), tokens(2, 40)
    phase = search_phase(1e-6, 200, 1.0, Window(width, 2))

    def searched(length: int) -> torch.Tensor:
        cell, start = model.cell(text)
        stopping = phase.stopping
        lengths = torch.tensor([9, length])
        with torch.no_grad():
            found = find_fixed_point(
                cell, start, phase.solver, stopping, window=phase.window, lengths=lengths
            )
        assert found.depth[1] >= found.depth[0]  # both are at work until the first has ended
        return found.value[0, :9]

    assert torch.equal(searched(30), searched(mate))
