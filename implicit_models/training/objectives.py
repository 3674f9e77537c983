"""What training minimises, and how often a model is right."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.language_models.labelled import LAST_TOKENS


def aligned_loss(logits: Float[Tensor, "B L V"], labels: Int[Tensor, "B L"]) -> Tensor:
    """Give the mean cross-entropy in nats where ``labels[t]`` belongs to ``inputs[:t + 1]``."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@torch.no_grad()
def accuracies(logits: Float[Tensor, "B L V"], labels: Int[Tensor, "B L"]) -> dict[str, float]:
    """Give the share of right answers over all tokens, and over the last 10."""
    right = (logits.argmax(-1) == labels).float()
    return {
        "accuracy": right.mean().item(),
        "accuracy_last_10": right[:, -LAST_TOKENS:].mean().item(),
    }
