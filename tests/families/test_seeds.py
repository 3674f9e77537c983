"""Weights are drawn from a seed, and nobody else's random numbers change."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from implicit_models.families.huggingface.family import FAMILY
from tests.language_models.kinds import model_of

MODEL = model_of("llama-explicit")


def ours(seed: int, folder: Path) -> nn.Module:
    MODEL.initialise(seed)
    return copy.deepcopy(MODEL)


def theirs(seed: int, folder: Path) -> nn.Module:
    LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
    ).save_pretrained(folder)
    parameters = SimpleNamespace(source=str(folder), pretrained=False)
    return FAMILY.build(parameters, 11, seed, "aligned")


@pytest.mark.parametrize("draw", [ours, theirs])
def test_drawing_weights_changes_no_other_random_numbers(
    draw: Callable[[int, Path], nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those of the CPU, nor of a GPU, whose generators nothing would restore."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    before = torch.get_rng_state()
    weights = [list(draw(seed, tmp_path).parameters()) for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), before) and not seeded
    for one, same, _ in zip(*weights, strict=True):
        assert torch.equal(one, same)
    assert not all(torch.equal(one, other) for one, _, other in zip(*weights, strict=True))
