"""How often a model is right."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.language_models.labelled import LAST_TOKENS


def accuracies(logits: Float[Tensor, "B L V"], labels: Int[Tensor, "B L"]) -> dict[str, float]:
    """Give the `shares_of_right` of the likeliest labels."""
    return shares_of_right(logits.argmax(-1), labels)


@torch.no_grad()
def shares_of_right(
    predictions: Int[Tensor, "B L"], labels: Int[Tensor, "B L"]
) -> dict[str, float]:
    """Give the share of right answers over all tokens, and over the last 10."""
    right = (predictions == labels).float()
    return {
        "accuracy": right.mean().item(),
        "accuracy_last_10": right[:, -LAST_TOKENS:].mean().item(),
    }
