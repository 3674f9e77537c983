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
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.cache import CarryCache
from implicit_models.language_models.language_model import num_parameters
from tests.language_models.models import (
    ALL,
    EXPLICIT,
    EXPLICIT_FAMILIES,
    IMPLICIT,
    IMPLICIT_FAMILIES,
    LSTM,
    our_model,
    remembered,
    small_model,
    tokens,
)

FIXED = Phase(Picard(), FixedSteps(7), None)
TIGHT = search_phase(1e-12, 2000, 1.0)
OURS = IMPLICIT_FAMILIES | {f"explicit {name}": each for name, each in EXPLICIT_FAMILIES.items()}
IMPLICIT_ONES = pytest.mark.parametrize(
    "parameters", IMPLICIT_FAMILIES.values(), ids=lambda p: p.family
)
INPUT_PROJECTION = {"mamba2": "in_proj", "llama": "qkv_proj"}


def input_projection(parameters: ModelParameters) -> str:
    return f"model.stack.blocks.0.mixer.{INPUT_PROJECTION[parameters.family]}.weight"


@pytest.mark.parametrize("parameters", ALL.values(), ids=ALL)
def test_a_token_never_changes_what_came_before_it(parameters: ModelParameters) -> None:
    model = small_model(parameters).float()
    phase = FIXED if parameters.implicit else None
    text = tokens(3, 13)
    before = model(text, phase=phase).logits
    for position in (1, 6, 12):
        changed = text.clone()
        changed[:, position] = (changed[:, position] + 1) % 11
        after = model(changed, phase=phase).logits
        assert torch.equal(before[:, :position], after[:, :position])
        assert not torch.equal(before[:, position:], after[:, position:])


@IMPLICIT_ONES
def test_a_search_to_a_tolerance_is_causal_to_that_tolerance(parameters: ModelParameters) -> None:
    model = small_model(parameters)
    text = tokens(3, 13)
    changed = text.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 11
    for tolerance in (1e-3, 1e-6, 1e-9):
        phase = search_phase(tolerance, 2000, 1.0)
        before, after = (model(each, phase=phase).logits[:, :9] for each in (text, changed))
        assert (before - after).abs().max() <= tolerance * before.abs().max()


@pytest.mark.parametrize("parameters", ALL.values(), ids=ALL)
def test_batch_mates_change_nothing(parameters: ModelParameters) -> None:
    model = small_model(parameters)
    phase = search_phase(1e-3, 100, 1.0) if parameters.implicit else None
    text = tokens(4, 9)
    together = model(text, phase=phase)
    for row in range(4):
        alone = model(text[row : row + 1], phase=phase)
        torch.testing.assert_close(alone.logits[0], together.logits[row], rtol=1e-10, atol=1e-12)
        if together.search is not None:
            assert alone.search.steps[0] == together.search.steps[row]


@IMPLICIT_ONES
def test_the_search_ends_at_a_fixed_point(parameters: ModelParameters) -> None:
    model = our_model(parameters)
    text = tokens(3, 9)
    search = model(text, phase=TIGHT).search
    assert search is not None
    assert (search.result == Result.CONVERGED).all()
    cell, start = model.cell(text)
    assert relative_residual(search.value, cell(search.value)).max() < 1e-11
    assert not start.any()


@IMPLICIT_ONES
@pytest.mark.parametrize("width", [1, 3, 8, 9, 20])
def test_every_window_finds_the_simultaneous_modes_fixed_point(
    parameters: ModelParameters, width: int
) -> None:
    model = small_model(parameters)
    text = tokens(3, 9)
    together = model(text, phase=TIGHT)
    sliding = model(text, phase=search_phase(1e-12, 2000, 1.0, Window(width)))
    assert (sliding.search.result == Result.CONVERGED).all()
    assert sliding.search.steps.shape == (3, 9)
    torch.testing.assert_close(sliding.logits, together.logits, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(sliding.search.value, together.search.value, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("parameters", OURS.values(), ids=OURS)
def test_a_text_in_pieces_gives_what_the_whole_gives(parameters: ModelParameters) -> None:
    model = our_model(parameters)
    phase = TIGHT if model.is_implicit else None
    text = tokens(2, 11)
    whole = model(text, phase=phase).logits
    cache, pieces = model.initial_cache(2), []
    for start, end in ((0, 5), (5, 6), (6, 6), (6, 11)):
        output = model(text[:, start:end], phase=phase, cache=cache)
        assert output.cache is cache
        assert cache.get_seq_length() == end
        pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("parameters", OURS.values(), ids=OURS)
def test_a_cache_comes_back_where_one_was_given_asked_for_or_no_gradient_is_wanted(
    parameters: ModelParameters,
) -> None:
    model = our_model(parameters)
    phase = FIXED if model.is_implicit else None
    given, whole = model.initial_cache(2), model(tokens(2, 3), phase=phase)
    assert whole.cache is None
    caches = [
        model(tokens(2, 3), phase=phase, cache=given).cache,
        model(tokens(2, 3), phase=phase, use_cache=True).cache,
    ]
    with torch.no_grad():
        caches.append(model(tokens(2, 3), phase=phase).cache)
        assert model(tokens(2, 3), phase=phase, use_cache=False).cache is None
    for cache in caches:
        torch.testing.assert_close(remembered(cache), remembered(given))


@IMPLICIT_ONES
@pytest.mark.parametrize(
    "asked", [{}, {"use_cache": True}, {"output_hidden_states": True}], ids=str
)
def test_a_phase_without_gradient_has_none(
    parameters: ModelParameters, asked: dict[str, bool]
) -> None:
    model, text = our_model(parameters), tokens(2, 5)
    found = model(text, labels=text, phase=FIXED, **asked)
    with torch.no_grad():
        torch.testing.assert_close(found.logits, model(text, phase=FIXED, **asked).logits)
    found.loss.backward()  # of the head alone
    assert all(weight.grad is None for weight in model.model.stack.parameters())
    if found.cache is not None:
        assert not any(part.requires_grad for row in remembered(found.cache) for part in row)


@pytest.mark.parametrize("parameters", OURS.values(), ids=OURS)
def test_going_on_with_a_copy_of_a_cache_leaves_it_as_it_is(parameters: ModelParameters) -> None:
    model = our_model(parameters)
    phase = TIGHT if model.is_implicit else None
    with torch.no_grad():
        cache = model(tokens(2, 4), phase=phase).cache
        frozen = remembered(cache)
        first, second = (
            model(tokens(2, 5, seed=1), phase=phase, cache=cache.copy()) for _ in range(2)
        )
    assert torch.equal(first.logits, second.logits)
    assert cache.get_seq_length() == 4
    torch.testing.assert_close(remembered(cache), frozen, rtol=0, atol=0)


@pytest.mark.parametrize("parameters", OURS.values(), ids=OURS)
@torch.no_grad()
def test_texts_that_branch_off_one_cache_know_nothing_of_each_other(
    parameters: ModelParameters,
) -> None:
    model = our_model(parameters)
    phase = TIGHT if model.is_implicit else None
    start, ends = tokens(2, 4), [tokens(2, 5, seed=seed) for seed in (1, 2)]
    cache = model(start, phase=phase).cache
    caches, pieces = [cache.copy(), cache.copy()], [[], []]
    for piece in (slice(0, 2), slice(2, 3), slice(3, 5)):
        for branch in (0, 1):
            output = model(ends[branch][:, piece], phase=phase, cache=caches[branch])
            pieces[branch].append(output.logits)
    for branch in (0, 1):
        whole = model(torch.cat((start, ends[branch]), 1), phase=phase).logits[:, 4:]
        torch.testing.assert_close(torch.cat(pieces[branch], 1), whole, rtol=1e-8, atol=1e-9)


@IMPLICIT_ONES
def test_bounded_output_is_the_cell_applied_from_zero(parameters: ModelParameters) -> None:
    model = our_model(parameters)
    cell, value = model.cell(tokens(2, 5))
    for _ in range(4):
        value = cell(value)
    logits = model(tokens(2, 5), phase=bounded_phase(4)).logits
    assert torch.equal(logits, value @ model.lm_head.weight.T)


@IMPLICIT_ONES
@pytest.mark.parametrize("phase", [bounded_phase(3), free_phase(1e-2, 20, 2, 0.8)])
def test_every_parameter_gets_a_gradient(parameters: ModelParameters, phase: Phase) -> None:
    model = small_model(parameters)
    model(tokens(3, 6), phase=phase).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@IMPLICIT_ONES
def test_free_gradient_approaches_finite_differences(parameters: ModelParameters) -> None:
    model = small_model(parameters)
    text = tokens(2, 5)
    parameter = model.get_parameter(input_projection(parameters))
    phase = free_phase(1e-12, 2000, 300, 1.0)
    model(text, phase=phase).logits.sin().sum().backward()
    assert parameter.grad is not None
    direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)).double()
    expected = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter.add_(direction, alpha=sign * 1e-6)
            expected.append(model(text, phase=TIGHT).logits.sin().sum())
            parameter.sub_(direction, alpha=sign * 1e-6)
    slope = (expected[0] - expected[1]) / 2e-6
    torch.testing.assert_close((parameter.grad * direction).sum(), slope, rtol=1e-6, atol=1e-7)


@IMPLICIT_ONES
def test_normalisation_leaves_the_initial_model_as_it_is(parameters: ModelParameters) -> None:
    plain = small_model(parameters, weight_normalisation=False)
    normalised = small_model(parameters)
    torch.testing.assert_close(
        plain(tokens(2, 5), phase=FIXED).logits, normalised(tokens(2, 5), phase=FIXED).logits
    )


@IMPLICIT_ONES
def test_normalised_weights_ignore_the_length_of_their_direction(
    parameters: ModelParameters,
) -> None:
    model = small_model(parameters)
    before = model(tokens(2, 5), phase=FIXED).logits
    with torch.no_grad():
        model.get_parameter(input_projection(parameters)).mul_(3.0)
    torch.testing.assert_close(model(tokens(2, 5), phase=FIXED).logits, before)


@pytest.mark.parametrize("parameters", ALL.values(), ids=ALL)
def test_the_seed_alone_decides_the_weights(parameters: ModelParameters) -> None:
    first, same = small_model(parameters, 3), small_model(parameters, 3)
    torch.rand(5)
    other = small_model(parameters, 4)
    for a, b in zip(first.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    embeddings = [model.get_input_embeddings().weight for model in (first, other)]
    assert not torch.equal(*embeddings)


def test_a_phase_where_none_belongs_is_refused() -> None:
    for parameters in (*EXPLICIT_FAMILIES.values(), LSTM):
        with pytest.raises(ValueError, match="explicit model takes None"):
            small_model(parameters)(tokens(1, 2), phase=FIXED)
    for name, value in (("tolerance", 0.1), ("max_self_iterations", 3)):
        with pytest.raises(ValueError, match=f"{name} is given; this explicit model takes None"):
            small_model(EXPLICIT)(tokens(1, 2), **{name: value})
        with pytest.raises(ValueError, match=f"{name} is given beside a phase"):
            small_model(IMPLICIT)(tokens(1, 2), phase=FIXED, **{name: value})
    with pytest.raises(ValueError, match="no cell"):
        our_model(EXPLICIT).cell(tokens(1, 2))


@IMPLICIT_ONES
def test_without_a_phase_the_configurations_are_taken(parameters: ModelParameters) -> None:
    model, text = our_model(parameters), tokens(2, 5)
    model.config.max_self_iterations, model.config.training_max_self_iterations = 50, 7
    with torch.no_grad():
        found = model(text)
        searched = search_phase(0.01, 50, 0.8, Window(20, 12))
        assert torch.equal(found.logits, model(text, phase=searched).logits)
    trained = model(text)
    assert torch.equal(trained.logits, model(text, phase=free_phase(0.05, 7, 4, 0.8)).logits)
    assert trained.logits.requires_grad
    model.config.training_phase = "bounded"
    assert torch.equal(model(text).logits, model(text, phase=bounded_phase(4)).logits)


@pytest.mark.parametrize("parameters", [*EXPLICIT_FAMILIES.values(), LSTM])
def test_a_loss_in_parts_is_that_of_the_whole(parameters: ModelParameters) -> None:
    """As transformers' Trainer has them, which asks for it by `accepts_loss_kwargs`."""
    model, text = small_model(parameters), tokens(4, 6)
    labels = text.masked_fill(torch.rand(4, 6, generator=torch.manual_seed(0)) < 0.4, -100)
    assert model.accepts_loss_kwargs
    whole = model(text, labels=labels).loss
    num_labels = (labels != -100).sum()
    parts = [
        model(text[part], labels=labels[part], num_items_in_batch=num_labels).loss
        for part in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-6, atol=0)


@pytest.mark.parametrize("parameters", OURS.values(), ids=OURS)
@pytest.mark.parametrize("mask", [None, torch.tensor([[1, 1, 1], [1, 0, 0]])], ids=["", "padded"])
def test_a_detached_cache_hands_on_no_gradient(
    parameters: ModelParameters, mask: torch.Tensor | None
) -> None:
    model, pieces = our_model(parameters), tokens(2, 6).chunk(2, 1)
    gradients = []
    for ends_early in (True, False):
        model.zero_grad()
        cache, losses = CarryCache(is_detached=True), []
        for piece in pieces:
            output = model(piece, attention_mask=mask, labels=piece, cache=cache)
            held = [tensor for row in remembered(cache) for tensor in row]
            assert not any(tensor.requires_grad for tensor in held)
            losses.append(output.loss)
            if ends_early:
                output.loss.backward()
        with torch.no_grad():  # writes into nothing that a backward pass reads
            model(pieces[0], cache=cache)
        if not ends_early:
            sum(losses).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


@torch.no_grad()
def test_an_lstm_returns_states_where_asked() -> None:
    model, text = small_model(LSTM), tokens(2, 3)
    cache = model(text, use_cache=True).cache
    assert model(text).cache is None and model(text, cache=cache).cache is not None
    assert model(text, cache=cache, use_cache=False).cache is None


def test_counts_of_a_whole_search_are_each_tokens_own() -> None:
    model, text = our_model(IMPLICIT), tokens(2, 3)
    iterations = model(text, phase=TIGHT).self_iterations
    expected = iterations.clone()
    iterations[:, 0] += 1
    assert torch.equal(iterations[:, 1:], expected[:, 1:])


@pytest.mark.parametrize("parameters", ALL.values(), ids=ALL)
def test_training_goes_on_from_a_cache_of_inference_mode(parameters: ModelParameters) -> None:
    model, text = small_model(parameters), tokens(2, 6)
    gradients = []
    for mode in (torch.no_grad(), torch.inference_mode()):
        model.zero_grad()
        with mode:
            cache = model(text[:, :3], use_cache=True).cache
        model(text[:, 3:], labels=text[:, 3:], cache=cache).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_parameters_are_counted_once() -> None:
    model = small_model(LSTM)
    gates = 4 * 12 * (16 + 12 + 2)
    assert num_parameters(model) == 11 * 16 + gates + 12 * 16
