"""Small models for the tests."""

from typing import Any

import torch

from implicit_models.backbones.key_value import KeyValueCarry
from implicit_models.backbones.linear import NormalisedWeight
from implicit_models.backbones.sliding_attention import SlidingCarry
from implicit_models.backbones.stack import StackCarry
from implicit_models.families.building import build
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.cache import CarryCache
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.modelling import ImplicitForCausalLM

VOCABULARY = 11
IMPLICIT = ModelParameters(
    family="mamba2",
    implicit=True,
    num_layers=2,
    d_model=16,
    d_state=8,
    expand=2,
    head_dim=8,
    weight_normalisation=True,
    chunk_length=4,
)
EXPLICIT = IMPLICIT.replace(implicit=False)
IMPLICIT_LLAMA = ModelParameters(
    family="llama",
    implicit=True,
    num_layers=2,
    d_model=16,
    num_heads=4,
    num_key_value_heads=2,
    d_feed_forward=24,
    weight_normalisation=True,
)
EXPLICIT_LLAMA = IMPLICIT_LLAMA.replace(implicit=False)
IMPLICIT_SLIDING = IMPLICIT_LLAMA.replace(sliding_window=5)
EXPLICIT_SLIDING = IMPLICIT_SLIDING.replace(implicit=False)
IMPLICIT_PADDED = IMPLICIT_LLAMA.replace(sliding_window=2, pad_window=True)
EXPLICIT_PADDED = IMPLICIT_PADDED.replace(implicit=False)
LSTM = ModelParameters(family="lstm", num_layers=1, d_model=16, hidden_size=12)

IMPLICIT_FAMILIES = {
    "mamba2": IMPLICIT,
    "llama": IMPLICIT_LLAMA,
    "sliding": IMPLICIT_SLIDING,
    "padded": IMPLICIT_PADDED,
}
EXPLICIT_FAMILIES = {
    "mamba2": EXPLICIT,
    "llama": EXPLICIT_LLAMA,
    "sliding": EXPLICIT_SLIDING,
    "padded": EXPLICIT_PADDED,
}
ALL = {
    "implicit mamba2": IMPLICIT,
    "explicit mamba2": EXPLICIT,
    "implicit llama": IMPLICIT_LLAMA,
    "explicit llama": EXPLICIT_LLAMA,
    "implicit sliding": IMPLICIT_SLIDING,
    "explicit sliding": EXPLICIT_SLIDING,
    "implicit padded": IMPLICIT_PADDED,
    "explicit padded": EXPLICIT_PADDED,
    "lstm": LSTM,
}

FACTORS = {
    "mamba2": {"in_proj": 0.3, "out_proj": 5.0},
    "llama": {"qkv_proj": 0.3, "gate_up_proj": 0.3, "out_proj": 10.0},
}


def small_model(parameters: ModelParameters, seed: int = 0, **changes: Any) -> LanguageModel:
    """A model in float64; an implicit one leans on its injection, so that it contracts."""
    model = build(parameters.replace(**changes), VOCABULARY, seed)
    if isinstance(model, ImplicitForCausalLM) and model.is_implicit:
        make_contract(model, parameters.family)
    return model.double().eval()


@torch.no_grad()
def make_contract(model: ImplicitForCausalLM, family: str) -> None:
    for name, weight in model.model.stack.named_modules():
        if isinstance(weight, NormalisedWeight):
            length = weight.weight if weight.scale is None else weight.scale
            length.mul_(FACTORS[family].get(name.rpartition(".")[2], 1.0))


def our_model(parameters: ModelParameters, **changes: Any) -> ImplicitForCausalLM:
    """A small Mamba2 or Llama, which may have a sliding window."""
    model = small_model(parameters, **changes)
    assert isinstance(model, ImplicitForCausalLM)
    return model


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, length), generator=draw)


def remembered(past: CarryCache | StackCarry | None) -> list[list[torch.Tensor]]:
    """What a cache or carry holds of each sequence: states, or keys and values of its tokens."""
    carry = past.carry if isinstance(past, CarryCache) else past
    assert carry is not None
    rows: list[list[torch.Tensor]] = []
    for block in carry.blocks:
        if isinstance(block, KeyValueCarry):
            lengths = block.lengths.tolist()
            found = [
                [block.keys[row, :, :length].clone(), block.values[row, :, :length].clone()]
                for row, length in enumerate(lengths)
            ]
        elif isinstance(block, SlidingCarry):
            found = [
                [each[row, block.reach - length :].clone() for each in block[:2]]
                for row, length in enumerate(block.lengths.tolist())
            ]
        else:
            found = [[each[row].clone() for each in block] for row in range(len(block.state))]
        rows = [a + b for a, b in zip(rows, found, strict=True)] if rows else found
    return rows
