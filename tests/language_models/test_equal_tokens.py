"""What a search from zero makes of two equal tokens at a text's beginning."""

import pytest
import torch

from implicit_models import (
    ImplicitLlamaConfig,
    ImplicitLlamaForCausalLM,
    ImplicitMamba2Config,
    ImplicitMamba2ForCausalLM,
)
from implicit_models.equilibrium.phase import search_phase

SIZES = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 1}
SEARCH = search_phase(1e-9, 500, 0.5)


def logits(model, tokens, **options):
    with torch.no_grad():
        ids = torch.tensor([tokens])
        return model.double().eval()(input_ids=ids, phase=SEARCH, **options).logits[0]


def llama(**options):
    torch.manual_seed(0)
    config = ImplicitLlamaConfig(
        **SIZES, num_attention_heads=2, intermediate_size=32, implicit=True, **options
    )
    return ImplicitLlamaForCausalLM(config)


@pytest.mark.parametrize("rope", [True, False])
@pytest.mark.parametrize("window", [None, 2])
def test_attention_gives_them_one_state(rope, window):
    found = logits(llama(rope=rope, sliding_window=window), [7, 7, 3])
    assert torch.allclose(found[1], found[0], atol=1e-7)
    assert not torch.allclose(found[2], found[1], atol=1e-3)


@pytest.mark.parametrize("rope", [True, False])
@pytest.mark.parametrize("window", [2, 5])
@pytest.mark.parametrize("use_cache", [True, False])
def test_a_padded_window_tells_them_apart(rope, window, use_cache):
    model = llama(rope=rope, sliding_window=window, pad_window=True)
    found = logits(model, [7, 7, 3], use_cache=use_cache)
    assert not torch.allclose(found[1], found[0], atol=1e-3)
    other = logits(model, [7, 3], use_cache=use_cache)
    assert not torch.allclose(found[2], other[1], atol=1e-3)


def test_what_follows_cannot_either_where_it_sees_one_token_back():
    model = llama(rope=False, sliding_window=2)
    assert torch.allclose(logits(model, [7, 7, 3])[2], logits(model, [7, 3])[1], atol=1e-7)
    assert not torch.allclose(logits(model, [5, 7, 3])[2], logits(model, [7, 3])[1], atol=1e-3)


def test_a_model_with_a_state_can():
    torch.manual_seed(0)
    config = ImplicitMamba2Config(**SIZES, state_size=8, head_dim=8, implicit=True)
    found = logits(ImplicitMamba2ForCausalLM(config), [7, 7])
    assert not torch.allclose(found[1], found[0], atol=1e-3)
