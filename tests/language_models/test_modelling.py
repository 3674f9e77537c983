"""Properties that every model keeps: causality, independence, pieces, and its fixed point."""

import pytest
import torch

from implicit_models.equilibrium.phase import (
    Phase,
    bounded_phase,
    free_phase,
    search_phase,
)
from implicit_models.equilibrium.solution import Result
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps, relative_residual
from implicit_models.equilibrium.window import Window
from implicit_models.language_models.building import num_parameters
from implicit_models.language_models.modelling import Mamba2LanguageModel
from implicit_models.language_models.parameters import ModelParameters
from tests.language_models.models import EXPLICIT, IMPLICIT, LSTM, small_model, tokens

FIXED = Phase(Picard(), FixedSteps(7), None)
TIGHT = search_phase(1e-12, 2000, 1.0)


@pytest.mark.parametrize(
    ("parameters", "phase"), [(IMPLICIT, FIXED), (EXPLICIT, None), (LSTM, None)]
)
def test_a_token_never_changes_what_came_before_it(
    parameters: ModelParameters, phase: Phase | None
) -> None:
    model = small_model(parameters).float()
    text = tokens(3, 13)
    before = model(text, phase).logits
    for position in (1, 6, 12):
        changed = text.clone()
        changed[:, position] = (changed[:, position] + 1) % 11
        after = model(changed, phase).logits
        assert torch.equal(before[:, :position], after[:, :position])
        assert not torch.equal(before[:, position:], after[:, position:])


def test_a_search_to_a_tolerance_is_causal_to_that_tolerance() -> None:
    model = small_model(IMPLICIT)
    text = tokens(3, 13)
    changed = text.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 11
    for tolerance in (1e-3, 1e-6, 1e-9):
        phase = search_phase(tolerance, 2000, 1.0)
        before, after = (model(each, phase).logits[:, :9] for each in (text, changed))
        assert (before - after).abs().max() <= tolerance * before.abs().max()


@pytest.mark.parametrize(
    ("parameters", "phase"),
    [(IMPLICIT, search_phase(1e-3, 100, 1.0)), (EXPLICIT, None), (LSTM, None)],
)
def test_batch_mates_change_nothing(parameters: ModelParameters, phase: Phase | None) -> None:
    model = small_model(parameters)
    text = tokens(4, 9)
    together = model(text, phase)
    for row in range(4):
        alone = model(text[row : row + 1], phase)
        torch.testing.assert_close(alone.logits[0], together.logits[row], rtol=1e-10, atol=1e-12)
        if together.search is not None:
            assert alone.search.steps[0] == together.search.steps[row]


def test_the_search_ends_at_a_fixed_point() -> None:
    model = small_model(IMPLICIT)
    assert isinstance(model, Mamba2LanguageModel)
    text = tokens(3, 9)
    search = model(text, TIGHT).search
    assert search is not None
    assert (search.result == Result.CONVERGED).all()
    cell, start = model.cell(text)
    assert relative_residual(search.value, cell(search.value)).max() < 1e-11
    assert not start.any()


@pytest.mark.parametrize("width", [1, 3, 8, 9, 20])
def test_every_window_finds_the_simultaneous_modes_fixed_point(width: int) -> None:
    model = small_model(IMPLICIT)
    text = tokens(3, 9)
    together = model(text, TIGHT)
    sliding = model(text, search_phase(1e-12, 2000, 1.0, Window(width)))
    assert (sliding.search.result == Result.CONVERGED).all()
    assert sliding.search.steps.shape == (3, 9)
    torch.testing.assert_close(sliding.logits, together.logits, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(sliding.search.value, together.search.value, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("parameters", [IMPLICIT, EXPLICIT, LSTM])
def test_a_text_in_pieces_gives_what_the_whole_gives(parameters: ModelParameters) -> None:
    model = small_model(parameters)
    phase = TIGHT if model.is_implicit else None
    text = tokens(2, 11)
    whole = model(text, phase).logits
    carry, pieces = model.initial_carry(2), []
    nothing = () if parameters is LSTM else ((6, 6),)  # torch's LSTM reads one token at least
    for start, end in ((0, 5), (5, 6), *nothing, (6, 11)):
        output = model(text[:, start:end], phase, carry)
        carry = output.carry
        pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-8, atol=1e-9)


def test_no_carry_comes_back_unless_one_was_given() -> None:
    model = small_model(EXPLICIT)
    assert model(tokens(2, 3)).carry is None
    assert model(tokens(2, 3), None, model.initial_carry(2)).carry is not None


def test_searching_from_one_carry_twice_is_the_same() -> None:
    model = small_model(IMPLICIT)
    carry = model(tokens(2, 4), TIGHT, model.initial_carry(2)).carry
    frozen = [tensor.clone() for block in carry.blocks for tensor in block]
    first, second = (model(tokens(2, 5, seed=1), TIGHT, carry) for _ in range(2))
    assert torch.equal(first.logits, second.logits)
    for before, after in zip(frozen, (t for block in carry.blocks for t in block), strict=True):
        assert torch.equal(before, after)


def test_bounded_output_is_the_cell_applied_from_zero() -> None:
    model = small_model(IMPLICIT)
    assert isinstance(model, Mamba2LanguageModel)
    cell, value = model.cell(tokens(2, 5))
    for _ in range(4):
        value = cell(value)
    logits = model(tokens(2, 5), bounded_phase(4)).logits
    assert torch.equal(logits, value @ model.embeddings.T)


@pytest.mark.parametrize("phase", [bounded_phase(3), free_phase(1e-2, 20, 2, 0.8)])
def test_every_parameter_gets_a_gradient(phase: Phase) -> None:
    model = small_model(IMPLICIT)
    model(tokens(3, 6), phase).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_free_gradient_approaches_finite_differences() -> None:
    model = small_model(IMPLICIT)
    text = tokens(2, 5)
    parameter = model.get_parameter("stack.blocks.0.mixer.in_proj.weight")
    model(text, free_phase(1e-12, 2000, 300, 1.0)).logits.sin().sum().backward()
    assert parameter.grad is not None
    direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)).double()
    expected = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter.add_(direction, alpha=sign * 1e-6)
            expected.append(model(text, TIGHT).logits.sin().sum())
            parameter.sub_(direction, alpha=sign * 1e-6)
    slope = (expected[0] - expected[1]) / 2e-6
    torch.testing.assert_close((parameter.grad * direction).sum(), slope, rtol=1e-6, atol=1e-7)


def test_normalisation_leaves_the_initial_model_as_it_is() -> None:
    plain = small_model(IMPLICIT, weight_normalisation=False)
    normalised = small_model(IMPLICIT)
    torch.testing.assert_close(
        plain(tokens(2, 5), FIXED).logits, normalised(tokens(2, 5), FIXED).logits
    )


def test_normalised_weights_ignore_the_length_of_their_direction() -> None:
    model = small_model(IMPLICIT)
    before = model(tokens(2, 5), FIXED).logits
    with torch.no_grad():
        model.get_parameter("stack.blocks.0.mixer.in_proj.weight").mul_(3.0)
    torch.testing.assert_close(model(tokens(2, 5), FIXED).logits, before)


def test_the_seed_alone_decides_the_weights() -> None:
    for parameters in (IMPLICIT, LSTM):
        first, same = small_model(parameters, 3), small_model(parameters, 3)
        torch.rand(5)
        other = small_model(parameters, 4)
        for a, b in zip(first.parameters(), same.parameters(), strict=True):
            assert torch.equal(a, b)
        assert not torch.equal(first.embeddings, other.embeddings)


def test_a_phase_where_none_belongs_is_refused() -> None:
    with pytest.raises(ValueError, match="implicit model takes a Phase"):
        small_model(IMPLICIT)(tokens(1, 2))
    for parameters in (EXPLICIT, LSTM):
        with pytest.raises(ValueError, match="explicit model takes None"):
            small_model(parameters)(tokens(1, 2), FIXED)
    explicit = small_model(EXPLICIT)
    assert isinstance(explicit, Mamba2LanguageModel)
    with pytest.raises(ValueError, match="no cell"):
        explicit.cell(tokens(1, 2))


def test_parameters_are_counted_once() -> None:
    model = small_model(LSTM)
    gates = 4 * 12 * (16 + 12 + 2)
    assert num_parameters(model) == 11 * 16 + gates + 12 * 16
