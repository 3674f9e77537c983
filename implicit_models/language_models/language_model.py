"""Any causal language model, ours or not, as the library calls it."""

from typing import Literal

from transformers import PreTrainedModel

LanguageModel = PreTrainedModel
LabelAlignment = Literal["next_token", "aligned"]


def num_parameters(model: LanguageModel) -> int:
    """Count a model's parameters, a tied head once."""
    return sum(parameter.numel() for parameter in model.parameters())
