"""Computing in bfloat16: weights, gradients and optimiser stay float32."""

import dataclasses
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from implicit_models.equilibrium.jacobian import JacobianPenalty
from implicit_models.equilibrium.phase import bounded_phase, free_phase
from implicit_models.families.building import build
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.forward import forward, forward_labelled
from implicit_models.language_models.losses import aligned_loss
from implicit_models.language_models.placement import DeviceError
from implicit_models.training.distributed import Execution, distribute

MODELS = {
    "mamba2": ModelParameters(
        family="mamba2",
        implicit=True,
        num_layers=2,
        d_model=32,
        d_state=8,
        head_dim=8,
        weight_normalisation=True,
    ),
    "llama": ModelParameters(
        family="llama", implicit=True, num_layers=2, d_model=32, num_heads=2, d_feed_forward=48
    ),
}
PHASES = {
    "bounded": bounded_phase(2),
    "4+1": bounded_phase(4, 1, 0.8),
    "free": free_phase(0.05, 8, 2, 0.8),
}

WINDOWS = [{}, {"sliding_window": 8}, {"sliding_window": 4, "pad_window": True}]


def gradients(family: str, phase: str, precision: str, checkpointing: Any = "none"):
    model = build(MODELS[family], vocabulary_size=40, seed=0)
    chosen = PHASES[phase]
    if checkpointing == "iterations":
        gradient = type(chosen.gradient)(**{**vars(chosen.gradient), "checkpointing": True})
        chosen = type(chosen)(**{**vars(chosen), "gradient": gradient})
    tokens = torch.randint(0, 40, (3, 16), generator=torch.Generator().manual_seed(0))
    module = distribute(model, precision, Execution(checkpointing=checkpointing))
    output = forward(module, tokens, chosen)
    loss = aligned_loss(output.logits.float(), tokens)
    loss.backward()
    return output, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("phase", PHASES)
def test_bfloat16_computes_about_the_same_gradients(family, phase):
    exact_output, exact = gradients(family, phase, "float32")
    output, found = gradients(family, phase, "bfloat16")
    assert exact_output.logits.dtype == torch.float32
    assert output.logits.dtype == torch.bfloat16
    torch.testing.assert_close(output.logits.float(), exact_output.logits, rtol=0.05, atol=0.02)
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32, name
    norm = sum(g.square().sum() for g in exact.values()).sqrt()
    distance = sum((found[n] - exact[n]).square().sum() for n in exact).sqrt()
    assert 0 < distance < 0.05 * norm


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", ["iterations", "blocks"])
def test_evaluating_again_in_the_backward_pass_changes_nothing(
    family, phase, precision, checkpointing
):
    _, kept = gradients(family, phase, precision)
    _, again = gradients(family, phase, precision, checkpointing)
    for name, gradient in kept.items():
        assert torch.equal(gradient, again[name]), name


@pytest.mark.parametrize("changes", WINDOWS)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_penalty_is_the_same_where_blocks_are_evaluated_again(changes, cached, precision):
    phase = dataclasses.replace(PHASES["free"], penalty=JacobianPenalty(0.2, 2, seed=3))
    tokens = torch.randint(0, 40, (3, 20), generator=torch.Generator().manual_seed(0))
    found = []
    for checkpointing in ("none", "blocks"):
        model = build(MODELS["llama"].replace(**changes), vocabulary_size=40, seed=0)
        module = distribute(model, precision, Execution(checkpointing=checkpointing))
        output = module(input_ids=tokens, targets=tokens, phase=phase, use_cache=cached)
        assert output.penalty > 0 and (output.cache is not None) == cached
        (output.loss + output.penalty).backward()
        found.append({name: weight.grad for name, weight in model.named_parameters()})
    kept, again = found
    for name, gradient in kept.items():
        assert torch.equal(gradient, again[name]), name


def test_blocks_of_transformers_are_not_evaluated_again_in_bfloat16():
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=40))
    match = "IMPLICIT_MODELS_CHECKPOINTING is 'blocks', and optimisation.precision is 'bfloat16'"
    with pytest.raises(DeviceError, match=match):
        distribute(model, "bfloat16", Execution(checkpointing="blocks"))


@pytest.mark.parametrize("num_items", [None, 48])
def test_a_loss_of_logits_is_not_rounded_to_bfloat16(num_items):
    config = GPT2Config(n_embd=32, n_head=2, n_layer=1, n_positions=32, vocab_size=300)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).eval()
    tokens = torch.randint(0, 300, (3, 16))
    module = distribute(model, "bfloat16", Execution())
    output = forward(module, tokens, None)
    assert output.logits.dtype == torch.bfloat16
    expected = aligned_loss(output.logits.float(), tokens, num_items)
    loss = forward_labelled(module, tokens, tokens, None, num_items).loss
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-6)
    exact = forward_labelled(model, tokens, tokens, None, num_items).loss
    torch.testing.assert_close(loss, exact, rtol=0, atol=2e-3)
    loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())
