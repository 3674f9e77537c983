"""Small models for the tests."""

import dataclasses
from typing import Any

import torch

from implicit_models.language_models.building import LanguageModel, build
from implicit_models.language_models.modelling import Mamba2LanguageModel
from implicit_models.language_models.parameters import ModelParameters

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
EXPLICIT = dataclasses.replace(IMPLICIT, implicit=False)
LSTM = ModelParameters(family="lstm", num_layers=1, d_model=16, hidden_size=12)


def small_model(parameters: ModelParameters, seed: int = 0, **changes: Any) -> LanguageModel:
    """A model in float64; an implicit one leans on its injection, so that it contracts."""
    model = build(dataclasses.replace(parameters, **changes), VOCABULARY, seed)
    if isinstance(model, Mamba2LanguageModel) and model.is_implicit:
        with torch.no_grad():
            for mixer in model.stack.mixers:
                for projection, factor in ((mixer.in_proj, 0.3), (mixer.out_proj, 5.0)):
                    length = projection.weight if projection.scale is None else projection.scale
                    length.mul_(factor)
    return model.double().eval()


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (batch, length), generator=draw)
