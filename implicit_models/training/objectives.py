"""How often a model is right."""

import torch
from jaxtyping import Int
from torch import Tensor

from implicit_models.language_models.labelled import LAST_TOKENS


@torch.no_grad()
def accuracies(predictions: Int[Tensor, "B L"], labels: Int[Tensor, "B L"]) -> dict[str, float]:
    """Give the share of right answers over all tokens, and over the last 10."""
    right = (predictions == labels).float()
    return {
        "accuracy": right.mean().item(),
        "accuracy_last_10": right[:, -LAST_TOKENS:].mean().item(),
    }
