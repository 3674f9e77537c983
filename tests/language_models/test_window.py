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
from implicit_models.language_models.modelling import ImplicitForCausalLM
from tests.language_models.models import IMPLICIT_FAMILIES, our_model, remembered, tokens

TIGHT = ResidualBelow(1e-11, 2000)
OUTSIDE = ["model.embed_tokens.weight", "model.injection.projection.weight"]
INSIDE = {
    "mamba2": [
        "0.mixer.A_log",
        *(f"1.mixer.{n}" for n in ("in_proj.weight", "conv1d.weight", "D")),
    ],
    "llama": [
        "0.mixer.qkv_proj.weight",
        "0.feed_forward.down_proj.scale",
        "1.mixer.out_proj.weight",
    ],
}
INSIDE |= dict.fromkeys(("sliding", "padded"), INSIDE["llama"])
FAMILIES = pytest.mark.parametrize("family", IMPLICIT_FAMILIES)


def implicit_model(family: str) -> ImplicitForCausalLM:
    return our_model(IMPLICIT_FAMILIES[family])


def names_of(family: str) -> list[str]:
    return OUTSIDE + [f"model.stack.blocks.{name}" for name in INSIDE[family]]


def gradients_after(
    family: str, gradient: Gradient, window: Window | None
) -> list[torch.Tensor | None]:
    model = implicit_model(family)
    phase = Phase(Picard(), TIGHT, gradient, window)
    model(tokens(3, 5), phase=phase).logits.sin().sum().backward()
    return [model.get_parameter(name).grad for name in names_of(family)]


@FAMILIES
@pytest.mark.parametrize(
    "gradient", [Unrolled(60), Phantom(80, 0.8), ImplicitFunction(Picard(), TIGHT)]
)
def test_every_window_gives_the_gradient_of_the_whole(family: str, gradient: Gradient) -> None:
    exact = gradients_after(family, ImplicitFunction(Picard(), TIGHT), None)
    for width in (1, 3, 20):
        grads = gradients_after(family, gradient, Window(width, 1))
        torch.testing.assert_close(grads, exact, rtol=1e-7, atol=1e-8)


@FAMILIES
def test_the_implicit_gradient_after_a_window_is_the_finite_difference(family: str) -> None:
    model = implicit_model(family)
    phase = Phase(Picard(), ResidualBelow(1e-13, 2000), None)
    grads = gradients_after(family, ImplicitFunction(Picard(), TIGHT), Window(3, 1))
    draw = torch.Generator().manual_seed(0)
    for name, grad in zip(names_of(family), grads, strict=True):
        parameter, losses = model.get_parameter(name), []
        direction = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        direction *= parameter.detach().square().mean().sqrt()
        for step in (1e-5, -2e-5):
            with torch.no_grad():
                parameter.add_(direction, alpha=step)
                losses.append(model(tokens(3, 5), phase=phase).logits.sin().sum())
        with torch.no_grad():
            parameter.add_(direction, alpha=1e-5)
        assert grad is not None
        slope = (losses[0] - losses[1]) / 2e-5
        torch.testing.assert_close((grad * direction).sum(), slope, rtol=1e-6, atol=1e-6)


@FAMILIES
@pytest.mark.parametrize("width", [1, 3, 20])
def test_pieces_from_cache_to_cache_give_what_the_whole_gives(family: str, width: int) -> None:
    model, text = implicit_model(family), tokens(2, 8)
    phase = search_phase(1e-11, 2000, 1.0, Window(width, 1))
    whole = model(text, phase=phase, cache=model.initial_cache(2))
    cache, pieces = model.initial_cache(2), []
    for piece in text.split([4, 1, 3], dim=1):
        output = model(piece, phase=phase, cache=cache)
        pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole.logits, rtol=1e-8, atol=1e-9)
    expected = remembered(whole.cache)
    torch.testing.assert_close(remembered(cache), expected, rtol=1e-8, atol=1e-9)


@FAMILIES
def test_searching_from_one_cache_twice_is_the_same_to_the_bit(family: str) -> None:
    model = implicit_model(family)
    phase = search_phase(1e-6, 200, 1.0, Window(3))
    cache = model(tokens(3, 4), phase=phase, use_cache=True).cache
    frozen = remembered(cache)
    first, second = (model(tokens(3, 5, seed=1), phase=phase, cache=cache.copy()) for _ in "ab")
    assert torch.equal(first.logits, second.logits)
    for name, tensor in vars(first.search).items():
        assert torch.equal(tensor, getattr(second.search, name)), name
    torch.testing.assert_close(remembered(cache), frozen, rtol=0, atol=0)


@FAMILIES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_as_many_other_mates_change_nothing_to_the_bit(family: str, dtype: torch.dtype) -> None:
    model = implicit_model(family).to(dtype)
    text, phase = tokens(5, 9), Phase(Picard(0.8), FixedSteps(12), None)
    expected = model(text, phase=phase)
    for seed in (1, 2):
        other = tokens(5, 9, seed=seed)
        other[2] = text[2]
        output = model(other, phase=phase)
        assert torch.equal(output.logits[2], expected.logits[2])
        assert torch.equal(output.search.value[2], expected.search.value[2])
        assert not torch.equal(output.logits[1], expected.logits[1])


@FAMILIES
@pytest.mark.parametrize("width", [1, 3, 9])
def test_mates_change_a_window_by_rounding_alone(family: str, width: int) -> None:
    model, text = implicit_model(family), tokens(4, 9)
    phase = search_phase(1e-5, 200, 1.0, Window(width, 2))
    together = model(text, phase=phase)
    for row in range(4):
        alone = model(text[row : row + 1], phase=phase)
        torch.testing.assert_close(alone.logits[0], together.logits[row], rtol=1e-10, atol=1e-11)
        assert torch.equal(alone.search.steps[0], together.search.steps[row])
        assert alone.search.depth[0] == together.search.depth[row]


@FAMILIES
@pytest.mark.parametrize("width", [1, 2, 9])
def test_a_poisoned_token_ends_its_sequence_and_keeps_what_was_committed(
    family: str, width: int
) -> None:
    model, text = implicit_model(family), tokens(3, 9)
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


@FAMILIES
@pytest.mark.parametrize("window", [None, Window(3)])
def test_single_tokens_and_single_sequences(family: str, window: Window | None) -> None:
    model, text = implicit_model(family), tokens(3, 4)
    phase = search_phase(1e-11, 2000, 1.0, window)
    whole = model(text, phase=phase).logits
    for part in (text[:1], text[:, :1], text[:1, :1]):
        logits = model(part, phase=phase).logits
        expected = whole[: part.shape[0], : part.shape[1]]
        torch.testing.assert_close(logits, expected, rtol=1e-8, atol=1e-9)


@FAMILIES
@pytest.mark.parametrize("window", [None, Window(3)])
@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
def test_nothing_to_search(family: str, shape: tuple[int, int], window: Window | None) -> None:
    model, phase = implicit_model(family), search_phase(1e-6, 50, 1.0, window)
    assert model(torch.zeros(shape, dtype=torch.int64), phase=phase).logits.shape == (*shape, 11)


@FAMILIES
@pytest.mark.parametrize("mate", [12, 20, 40])
@pytest.mark.parametrize("width", [4, 16])
def test_as_many_longer_mates_do_not_change_a_window_to_the_bit(
    family: str, width: int, mate: int
) -> None:
    model, text = implicit_model(family), tokens(2, 40)
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
