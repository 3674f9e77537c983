"""The optimiser."""

import torch
from torch import nn

from implicit_models.training.parameters import OptimisationParameters


def build_optimiser(model: nn.Module, parameters: OptimisationParameters) -> torch.optim.AdamW:
    """Give AdamW over a model; only the matrices of its cell decay.

    Embeddings, biases, norms, scales and Mamba2's per-head parameters never decay. Under weight
    normalisation a matrix is a direction: decay leaves its function as it is and raises the
    effective learning rate.
    """
    decayed, kept = [], []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.dim() > 1 and not name.endswith("scale") and name != "embeddings"
        (decayed if is_matrix else kept).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": parameters.weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=parameters.learning_rate,
        betas=(parameters.beta1, parameters.beta2),
        foreach=True,
    )
