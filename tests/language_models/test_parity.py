"""Explicit Llama and Mamba2 against transformers' own, with the same weights."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from implicit_models.families.conversion import from_transformers, to_transformers
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.source_names import SourceError
from tests.language_models.kinds import mask_of, model_of, tokens

VOCABULARY = 31
LLAMA: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped queries, head untied": {
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "tie_word_embeddings": False,
    },
    "one key head, wide heads": {"num_key_value_heads": 1, "head_dim": 14, "rms_norm_eps": 1e-6},
    "another theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 100.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        "max_position_embeddings": 64,
    },
    "whole heads rotated": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 100.0,
            "partial_rotary_factor": 1.0,
        }
    },
    "yarn, finetuned": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 100.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "finetuned": True,
            "partial_rotary_factor": 1.0,
        },
        "max_position_embeddings": 64,
    },
}
MISTRAL: dict[str, dict[str, Any]] = {
    "a window": {"sliding_window": 5, "num_key_value_heads": 2},
    "a window and another token": {"sliding_window": 12, "head_dim": 6},
    "a window, yarn": {"sliding_window": 4, "rope_parameters": LLAMA["yarn"]["rope_parameters"]},
}
SMOLLM3: dict[str, dict[str, Any]] = {
    "no positions": {"no_rope_layers": [0, 0], "num_key_value_heads": 2},
    "no positions, wide heads": {"no_rope_layers": [0, 0], "head_dim": 6},
}
MAMBA2: dict[str, dict[str, Any]] = {
    "plain": {},
    "groups, head untied": {
        "n_groups": 2,
        "num_hidden_layers": 3,
        "tie_word_embeddings": False,
        "layer_norm_epsilon": 1e-6,
    },
    "each head a group": {"n_groups": 8, "head_dim": 4, "num_heads": 8, "state_size": 16},
    "wide, short convolution": {"expand": 3, "num_heads": 6, "conv_kernel": 2, "chunk_size": 3},
}
SHAPES = [
    (family, name)
    for family, shapes in (
        ("llama", LLAMA),
        ("mistral", MISTRAL),
        ("smollm3", SMOLLM3),
        ("mamba2", MAMBA2),
    )
    for name in shapes
]
FEW = [
    ("smollm3", "no positions"),
    ("mistral", "a window"),
    ("mistral", "a window, yarn"),
    ("llama", "grouped queries, head untied"),
    ("llama", "llama3"),
    ("mamba2", "groups, head untied"),
]


def peer_of(family: str, name: str) -> PreTrainedModel:
    """transformers' model, with no parameter left at a value that would hide it."""
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
    }
    torch.manual_seed(0)
    if family == "llama":
        sizes = {"num_attention_heads": 4, "intermediate_size": 24} | LLAMA[name]
        peer: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**(common | sizes)))
    elif family == "mistral":
        sizes = {"num_attention_heads": 4, "intermediate_size": 24} | MISTRAL[name]
        sizes = {"num_key_value_heads": 4, "attn_implementation": "eager"} | sizes
        peer = MistralForCausalLM(MistralConfig(**(common | sizes)))
    elif family == "smollm3":
        sizes = {"num_attention_heads": 4, "intermediate_size": 24} | SMOLLM3[name]
        sizes = {"num_key_value_heads": 4, "pad_token_id": 0} | sizes
        peer = SmolLM3ForCausalLM(SmolLM3Config(**(common | sizes)))
    else:
        sizes = {"state_size": 8, "head_dim": 8, "num_heads": 4, "n_groups": 1, "chunk_size": 4}
        tokens_of_theirs = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        peer = Mamba2ForCausalLM(Mamba2Config(**(common | tokens_of_theirs | sizes | MAMBA2[name])))
    with torch.no_grad():
        for key, parameter in peer.named_parameters():
            if parameter.dim() == 1 and not key.endswith("A_log"):
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return peer.eval()


def assert_near(ours: Tensor, theirs: Tensor, what: str = "logits") -> None:
    """At most 1e-5 of the largest number there is."""
    assert ours.shape == theirs.shape, what
    difference = (ours - theirs).abs().max()
    assert difference <= 1e-5 * theirs.abs().max(), f"{what}: {difference / theirs.abs().max()}"


def gradients_under_their_names(ours: ImplicitForCausalLM) -> dict[str, Tensor]:
    """Our gradients, carried to transformers' names as weights are."""
    bearer = copy.deepcopy(ours)
    with torch.no_grad():
        for parameter, source in zip(bearer.parameters(), ours.parameters(), strict=True):
            assert source.grad is not None
            parameter.copy_(source.grad)
    return dict(to_transformers(bearer).named_parameters())


def assert_same_gradients(ours: ImplicitForCausalLM, theirs: PreTrainedModel) -> None:
    gradients = gradients_under_their_names(ours)
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
        assert_near(gradients[name], parameter.grad, name)


@pytest.mark.parametrize(("family", "name"), SHAPES)
def test_logits_loss_and_gradients(family: str, name: str) -> None:
    theirs = peer_of(family, name)
    ours = from_transformers(theirs)
    text = tokens(3, 13)
    found, expected = ours(text, labels=text), theirs(text, labels=text)
    assert_near(found.logits, expected.logits)
    assert_near(found.loss, expected.loss, "loss")
    found.loss.backward()
    expected.loss.backward()
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("name", [*LLAMA])
def test_a_llama_is_loaded_as_it_was_saved(name: str, tmp_path: Path) -> None:
    ours = from_transformers(peer_of("llama", name))
    ours.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    text = tokens(2, 11)
    assert torch.equal(loaded(text).logits, ours(text).logits)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("family", "name"), FEW)
def test_padding(family: str, name: str, side: str) -> None:
    theirs = peer_of(family, name)
    ours = from_transformers(theirs)
    length = 11
    spans = [(0, 11), (4, 11), (9, 11)] if side == "left" else [(0, 11), (0, 7), (0, 1)]
    text, mask = tokens(3, length), mask_of(spans, length)
    labels = text.masked_fill(mask == 0, -100)
    # The first real token has none before it: its prediction is made at padding on the left.
    labels[range(3), [first for first, _ in spans]] = -100
    found = ours(text, attention_mask=mask, labels=labels)
    expected = theirs(text, attention_mask=mask, labels=labels, **positions(family, mask))
    there = mask.bool()
    assert_near(found.logits[there], expected.logits[there])
    assert_near(found.loss, expected.loss, "loss")
    found.loss.backward()
    expected.loss.backward()
    assert_same_gradients(ours, theirs)


def positions(family: str, mask: Tensor) -> dict[str, Tensor]:
    if family == "mamba2":
        return {}
    return {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize(("family", "name"), FEW)
@torch.no_grad()
def test_prefill_then_token_by_token(family: str, name: str, left: int) -> None:
    theirs = peer_of(family, name)
    ours = from_transformers(theirs)
    length, prompt = 12, 7
    text, mask = tokens(2, length), mask_of([(0, length), (left, length)], length)
    our_cache = their_cache = None
    for first, last in [(0, prompt), *((at, at + 1) for at in range(prompt, length))]:
        piece, so_far = text[:, first:last], mask[:, :last]
        found = ours(piece, attention_mask=so_far, cache=our_cache, use_cache=True)
        our_cache = found.cache
        if family != "mamba2":
            place = positions(family, mask)["position_ids"][:, first:last]
            their_cache = their_cache or DynamicCache(config=theirs.config)
            expected = theirs(piece, attention_mask=so_far, cache=their_cache, position_ids=place)
        else:
            expected = theirs(
                piece,
                attention_mask=so_far if first == 0 else None,
                cache=their_cache,
                use_cache=True,
            )
            their_cache = expected.cache
        there = mask[:, first:last].bool()
        assert_near(found.logits[there], expected.logits[there], f"token {first}")
    assert our_cache is not None and our_cache.get_seq_length() == length


@pytest.mark.parametrize(("family", "name"), SHAPES)
def test_conversion_loses_nothing(family: str, name: str) -> None:
    theirs = peer_of(family, name)
    ours = from_transformers(theirs)
    back = to_transformers(ours)
    assert type(back) is type(theirs)
    assert_same_weights(back, theirs)
    again = from_transformers(back)
    assert_same_weights(again, ours)
    assert again.config.to_dict() == ours.config.to_dict()
    kept = ("vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings")
    kept += ("bos_token_id", "eos_token_id", "pad_token_id", "initializer_range")
    if family != "mamba2":
        kept += ("num_key_value_heads", "head_dim", "rope_parameters", "rms_norm_eps")
        kept += ("max_position_embeddings", "intermediate_size")
    else:
        kept += ("n_groups", "head_dim", "num_heads", "conv_kernel", "layer_norm_epsilon")
    for field in kept:
        if hasattr(theirs.config, field):  # SmolLM3 need not know the width of a head
            assert getattr(back.config, field) == getattr(theirs.config, field), field
    assert not ours.training and not back.training
    tied = ours.lm_head.weight is ours.model.embed_tokens.weight
    assert tied == theirs.config.tie_word_embeddings


@pytest.mark.parametrize("changes", [{"pad_window": True}, {"rope": False}])
def test_what_transformers_does_not_have_is_not_converted(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="transformers has no model like a ImplicitLlama"):
        to_transformers(model_of("sliding-explicit", **changes))


def test_a_mistral_without_a_window_is_a_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MISTRAL, "all tokens", {"sliding_window": None})
    theirs = peer_of("mistral", "all tokens")
    back = to_transformers(from_transformers(theirs))
    assert type(back) is LlamaForCausalLM
    assert_same_weights(back, theirs)


def test_a_smollm3_with_positions_in_all_layers_is_a_llama(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SMOLLM3, "all", {"no_rope_layers": [1, 1]})
    theirs = peer_of("smollm3", "all")
    back = to_transformers(from_transformers(theirs))
    assert type(back) is LlamaForCausalLM
    assert_same_weights(back, theirs)


def test_a_smollm3_with_positions_in_some_layers_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SMOLLM3, "some", {"no_rope_layers": [1, 0]})
    with pytest.raises(SourceError, match=r"no_rope_layers is \[1, 0\] in the source"):
        from_transformers(peer_of("smollm3", "some"))


def assert_same_weights(found: PreTrainedModel, expected: PreTrainedModel) -> None:
    ours, theirs = found.state_dict(), expected.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert tensor.dtype == ours[name].dtype and torch.equal(tensor, ours[name]), name


def test_conversion_keeps_the_precision_and_drops_the_padding_rows() -> None:
    peer = peer_of("llama", "plain").to(torch.bfloat16)
    assert from_transformers(peer).dtype == torch.bfloat16
    padded = model_of("mamba2-explicit", dtype=torch.float32, pad_vocab_size_multiple=8)
    theirs = to_transformers(padded)
    assert theirs.get_input_embeddings().weight.shape == (31, 16)
    text = tokens(2, 5)
    assert_near(padded(text).logits, theirs(text).logits)


@pytest.mark.parametrize(
    ("family", "changes", "match"),
    [
        ("llama", {"attention_bias": True}, "attention_bias is True in the source; ours have F"),
        ("llama", {"mlp_bias": True}, "mlp_bias is True"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu' in the source; ours have 'silu'"),
        ("mamba2", {"use_bias": True}, "use_bias is True"),
        ("mamba2", {"use_conv_bias": False}, "use_conv_bias is False"),
        ("mamba2", {"time_step_limit": (0.01, 0.1)}, r"time_step_limit is \(0.01, 0.1\)"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type is 'dynamic'",
        ),
    ],
)
def test_what_ours_have_not_is_refused(
    family: str, changes: dict[str, Any], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LLAMA if family == "llama" else MAMBA2, "changed", changes)
    with pytest.raises(SourceError, match=match):
        from_transformers(peer_of(family, "changed"))


def test_what_transformers_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="the model is implicit"):
        to_transformers(model_of("llama-implicit"))
    with pytest.raises(ValueError, match="of normalised weights"):
        to_transformers(model_of("llama-explicit", weight_normalisation=True))
    with pytest.raises(SourceError, match="is a ImplicitLlamaModel"):
        from_transformers(model_of("llama-explicit").model)
