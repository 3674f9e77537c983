"""Explicit Mamba2 against transformers' own, with the same weights."""

import pytest
import torch
import torch.nn.functional as F
from transformers import Mamba2Config, Mamba2ForCausalLM

from tests.language_models.models import EXPLICIT, VOCABULARY, small_model, tokens

SHAPES = [
    {"num_layers": 1, "d_model": 16, "d_state": 8, "expand": 2, "head_dim": 8, "num_groups": 1},
    {"num_layers": 3, "d_model": 12, "d_state": 4, "expand": 3, "head_dim": 6, "num_groups": 2},
    {"num_layers": 2, "d_model": 16, "d_state": 16, "expand": 2, "head_dim": 4, "num_groups": 4},
]


def peer_of(shape: dict[str, int]) -> Mamba2ForCausalLM:
    torch.manual_seed(0)
    config = Mamba2Config(
        vocab_size=VOCABULARY,
        hidden_size=shape["d_model"],
        num_hidden_layers=shape["num_layers"],
        state_size=shape["d_state"],
        expand=shape["expand"],
        head_dim=shape["head_dim"],
        num_heads=shape["expand"] * shape["d_model"] // shape["head_dim"],
        n_groups=shape["num_groups"],
        conv_kernel=4,
        chunk_size=4,
        layer_norm_epsilon=1e-5,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return Mamba2ForCausalLM(config).eval()


def names_of_peer(name: str) -> str:
    """The peer's name of one of our parameters."""
    if name == "embeddings":
        return "backbone.embeddings.weight"
    if name == "stack.norm":
        return "backbone.norm_f.weight"
    name = name.replace("stack.blocks", "backbone.layers").replace("conv1d_bias", "conv1d.bias")
    return f"{name}.weight" if name.endswith("norm") else name


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_gradients_equal_transformers(shape: dict[str, int]) -> None:
    ours = small_model(EXPLICIT, weight_normalisation=False, **shape).float()
    peer = peer_of(shape)
    theirs = dict(peer.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            theirs[names_of_peer(name)].copy_(parameter.view_as(theirs[names_of_peer(name)]))
    assert len(theirs) == len(list(ours.parameters()))

    text = tokens(3, 13)
    logits, expected = ours(text).logits, peer(text).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
    for output in (logits, expected):
        F.cross_entropy(output.flatten(0, 1), text.flatten()).backward()
    for name, parameter in ours.named_parameters():
        gradient = theirs[names_of_peer(name)].grad
        assert parameter.grad is not None and gradient is not None
        torch.testing.assert_close(
            parameter.grad, gradient.view_as(parameter), rtol=1e-4, atol=1e-6, msg=name
        )
