"""Theorem 1: the Jacobian of the state transition, by autograd, by formula, by differences."""

import pytest
import torch

from implicit_models.backbones.stack import StackCarry
from implicit_models.equilibrium.gradients import Gradient, ImplicitFunction, Unrolled
from implicit_models.equilibrium.phase import Phase, bounded_phase, free_phase, search_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import ResidualBelow
from implicit_models.equilibrium.window import Window
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.cache import CarryCache
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.state_transition import (
    implicit_function_jacobian,
    off_diagonal_share,
    sampled_transition,
    state_transition_jacobian,
)
from tests.language_models.models import IMPLICIT_LLAMA, our_model, tokens

PAPER = ModelParameters(
    family="mamba2", implicit=True, num_layers=1, d_model=64, d_state=1, head_dim=64
)
GROUPED = ModelParameters(
    family="mamba2",
    implicit=True,
    num_layers=1,
    d_model=16,
    d_state=4,
    head_dim=8,
    num_groups=2,
    weight_normalisation=True,
)
TIGHT = ResidualBelow(1e-13, 1000)
SEARCH = Phase(Picard(), TIGHT, None)
EXACT = Phase(Picard(), TIGHT, ImplicitFunction(Picard(), TIGHT))


def lively_model(parameters: ModelParameters, **changes) -> ImplicitForCausalLM:
    """An untrained model whose output hangs on its state: no skip, and large time steps."""
    model = our_model(parameters, **changes)
    with torch.no_grad():
        for mixer in model.model.stack.mixers:
            for parameter in (mixer.dt_bias, mixer.A_log, mixer.D):
                parameter.zero_()
    return model


def carry_after(model: ImplicitForCausalLM, text: torch.Tensor) -> StackCarry:
    with torch.no_grad():
        phase = SEARCH if model.is_implicit else None
        return model(text, phase=phase).cache.carry


def carry_at_start(model: ImplicitForCausalLM) -> StackCarry:
    carry = model.initial_cache(1).carry
    assert carry is not None
    return carry


def by_differences(
    model: ImplicitForCausalLM, text: torch.Tensor, carry: StackCarry, phase: Phase | None
) -> torch.Tensor:
    """Central differences of the first block's state, all in one batch."""
    (block,) = carry.blocks
    num_entries, step = block.state.numel(), 1e-5
    shifts = step * torch.eye(num_entries, dtype=torch.float64)
    rows = torch.zeros(2 * num_entries, dtype=torch.int64)
    shifted = block.state.flatten(1) + torch.cat((shifts, -shifts))
    carry = StackCarry(
        (block.select(rows)._replace(state=shifted.view(-1, *block.state.shape[1:])),)
    )
    with torch.no_grad():
        output = model(text[rows], phase=phase, cache=CarryCache(carry))
    after = output.cache.carry.blocks[0].state.flatten(1)
    return ((after[:num_entries] - after[num_entries:]) / (2 * step)).T


@pytest.mark.parametrize(
    ("parameters", "num_layers", "gradient"),
    [
        (PAPER, 1, EXACT.gradient),
        (PAPER, 1, Unrolled(100)),
        (PAPER, 2, EXACT.gradient),
        (GROUPED, 1, EXACT.gradient),
        (GROUPED, 2, EXACT.gradient),
        (GROUPED, 2, Unrolled(100)),
    ],
)
def test_autograd_through_the_fixed_point_is_the_formula(
    parameters: ModelParameters, num_layers: int, gradient: Gradient
) -> None:
    model = lively_model(parameters, num_layers=num_layers)
    text = tokens(1, 6)
    carry = carry_after(model, text[:, :5])
    formula = implicit_function_jacobian(model, text[:, 5:], carry, SEARCH)
    phase = Phase(Picard(), TIGHT, gradient)
    autograd = state_transition_jacobian(model, text[:, 5:], carry, phase)
    assert formula.shape == (128 * num_layers, 128 * num_layers)
    torch.testing.assert_close(autograd, formula, rtol=0, atol=1e-9)
    assert off_diagonal_share(formula) > 0.01
    assert not any(tensor.requires_grad for tensor in (formula, autograd))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("parameters", [PAPER, GROUPED])
@pytest.mark.parametrize("phase", [EXACT, bounded_phase(2)])
def test_autograd_is_finite_differences(parameters: ModelParameters, phase: Phase) -> None:
    model = lively_model(parameters)
    text = tokens(1, 6)
    carry = carry_after(model, text[:, :5])
    autograd = state_transition_jacobian(model, text[:, 5:], carry, phase)
    differences = by_differences(model, text[:, 5:], carry, phase)
    torch.testing.assert_close(autograd, differences, rtol=0, atol=1e-7)


@pytest.mark.parametrize("parameters", [PAPER, GROUPED])
def test_an_explicit_block_moves_its_state_diagonally(parameters: ModelParameters) -> None:
    model = lively_model(parameters, implicit=False)
    text = tokens(1, 6)
    carry = carry_after(model, text[:, :5])
    jacobian = state_transition_jacobian(model, text[:, 5:], carry)
    diagonal = jacobian.diagonal()
    assert torch.equal(jacobian, diagonal.diag())
    assert off_diagonal_share(jacobian) == 0.0
    assert ((diagonal > 0.0) & (diagonal < 1.0)).all()
    torch.testing.assert_close(jacobian, by_differences(model, text[:, 5:], carry, None))


def test_only_a_fixed_point_lets_a_later_block_reach_an_earlier_one() -> None:
    text = tokens(1, 6)
    later_by_earlier, earlier_by_later = [], []
    for implicit in (False, True):
        model = lively_model(GROUPED, num_layers=2, implicit=implicit)
        carry = carry_after(model, text[:, :5])
        phase = EXACT if implicit else None
        jacobian = state_transition_jacobian(model, text[:, 5:], carry, phase)
        later_by_earlier.append(jacobian[128:, :128].abs().max())
        earlier_by_later.append(jacobian[:128, 128:].abs().max())
        for block in (jacobian[:128, :128], jacobian[128:, 128:]):
            assert (off_diagonal_share(block) > 0.0) is implicit
    assert min(later_by_earlier) > 1e-3
    assert earlier_by_later[0] == 0.0 and earlier_by_later[1] > 1e-3


def test_several_tokens_multiply_where_only_the_state_remembers() -> None:
    model = lively_model(GROUPED, conv_kernel=1)
    text, carry = tokens(1, 7), carry_after(model, tokens(1, 4))
    whole = implicit_function_jacobian(model, text[:, 4:], carry, SEARCH)
    product = torch.eye(128, dtype=torch.float64)
    for position in range(4, 7):
        token = text[:, position : position + 1]
        product = implicit_function_jacobian(model, token, carry, SEARCH) @ product
        with torch.no_grad():
            output = model(token, phase=SEARCH, cache=CarryCache(carry))
        carry = output.cache.carry
    torch.testing.assert_close(whole, product, rtol=0, atol=1e-9)
    carry = carry_after(model, tokens(1, 4))
    few = torch.arange(0, 128, 13)
    autograd = state_transition_jacobian(model, text[:, 4:], carry, EXACT, few)
    torch.testing.assert_close(autograd, whole[few][:, few], rtol=0, atol=1e-9)


def test_entries_are_rows_and_columns_of_the_whole() -> None:
    model = lively_model(GROUPED, num_layers=2)
    text, entries = tokens(1, 3), torch.tensor([200, 3, 77])
    carry = carry_after(model, tokens(1, 4))
    whole = implicit_function_jacobian(model, text, carry, SEARCH)[entries][:, entries]
    for jacobian in (
        implicit_function_jacobian(model, text, carry, SEARCH, entries),
        state_transition_jacobian(model, text, carry, EXACT, entries),
    ):
        torch.testing.assert_close(jacobian, whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("num_samples", "step"), [(1000, 1), (128, 1), (40, 3), (32, 5), (1, 129)])
def test_a_sample_is_of_the_first_block_by_the_last_token(num_samples: int, step: int) -> None:
    model, text = lively_model(GROUPED, num_layers=2), tokens(1, 6)
    carry = carry_after(model, text[:, :5])
    sample = sampled_transition(model, text, num_samples)
    assert sample.state_size == 128
    whole = implicit_function_jacobian(model, text[:, 5:], carry, SEARCH)
    expected = whole[:128:step, :128:step]
    torch.testing.assert_close(sample.formula, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(sample.jacobian, expected, rtol=0, atol=1e-9)


def test_a_sample_of_an_explicit_model_has_no_formula() -> None:
    model, text = lively_model(GROUPED, implicit=False), tokens(1, 6)
    sample = sampled_transition(model, text)
    assert sample.formula is None
    carry = carry_after(model, text[:, :5])
    assert torch.equal(sample.jacobian, state_transition_jacobian(model, text[:, 5:], carry))


def test_the_sequential_mode_has_the_same_transition() -> None:
    model = lively_model(GROUPED)
    text, carry = tokens(1, 3), carry_after(model, tokens(1, 4))
    phase = Phase(Picard(), TIGHT, EXACT.gradient, Window(1, 1))
    few = torch.arange(0, 128, 13)
    torch.testing.assert_close(
        state_transition_jacobian(model, text, carry, phase, few),
        implicit_function_jacobian(model, text, carry, SEARCH, few),
        rtol=0,
        atol=1e-9,
    )


def test_what_is_no_fixed_point_is_refused() -> None:
    model = lively_model(GROUPED)
    text, carry = tokens(1, 1), carry_at_start(model)
    with pytest.raises(ValueError, match="gradient is None"):
        state_transition_jacobian(model, text, carry, SEARCH)
    with pytest.raises(ValueError, match="ended after 3 steps with a residual of"):
        state_transition_jacobian(model, text, carry, free_phase(1e-13, 3, 2, 1.0))
    with pytest.raises(ValueError, match="ended after 3 steps with a residual of"):
        implicit_function_jacobian(model, text, carry, search_phase(1e-13, 3, 1.0))
    explicit = lively_model(GROUPED, implicit=False)
    with pytest.raises(ValueError, match="explicit model has no cell"):
        implicit_function_jacobian(explicit, text, carry, SEARCH)


def test_what_has_no_state_is_refused() -> None:
    model, text = our_model(IMPLICIT_LLAMA), tokens(1, 1)
    for jacobian, phase in (
        (state_transition_jacobian, EXACT),
        (implicit_function_jacobian, SEARCH),
    ):
        with pytest.raises(ValueError, match="no Mamba2"):
            jacobian(model, text, carry_at_start(model), phase)


def test_share_off_the_diagonal() -> None:
    assert off_diagonal_share(torch.tensor([[3.0, 0.0], [4.0, 0.0]])) == pytest.approx(16 / 25)
    assert off_diagonal_share(torch.rand(5).diag()) == 0.0
    assert off_diagonal_share(torch.tensor([[0.0, 1.0], [1.0, 0.0]])) == 1.0
