"""Computing in bfloat16 with weights that are kept in float32."""

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from implicit_models.families.family import family_of
from implicit_models.language_models.language_model import LanguageModel


class InPrecision(nn.Module):
    """A model whose forward pass computes in another precision than its weights have.

    The weights are cast once a forward pass, all but those that the family keeps exact, and their
    gradients arrive in the precision they are kept in.

    Parameters
    ----------
    precision
        ``float32`` leaves everything as it is.
    """

    def __init__(self, model: LanguageModel, precision: str) -> None:
        super().__init__()
        self.model = model
        self.dtype = getattr(torch, precision)
        self.exact = family_of(model.config).exact_weights

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self.model.config

    def forward(self, **inputs: Any) -> Any:
        """Call the model."""
        if self.dtype == torch.float32:
            return self.model(**inputs)
        cast = {
            name: weight if name.rpartition(".")[2] in self.exact else weight.to(self.dtype)
            for name, weight in self.model.named_parameters()
        }
        return functional_call(self.model, cast, (), inputs)
