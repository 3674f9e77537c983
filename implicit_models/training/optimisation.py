"""The optimiser."""

import torch
from torch import nn

from implicit_models.language_models.language_model import LanguageModel
from implicit_models.training.parameters import OptimisationParameters


def build_optimiser(model: LanguageModel, parameters: OptimisationParameters) -> torch.optim.AdamW:
    """Return AdamW over a model; only the matrices of its cell decay.

    Embeddings (of positions too), the head, biases, norms, scales and Mamba2's per-head parameters
    never decay.
    Under weight normalisation a matrix is a direction: decay leaves its function as it is and
    raises the effective learning rate.
    """
    decayed, kept = [], []
    embeddings = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    if (head := model.get_output_embeddings()) is not None:
        embeddings.add(id(head.weight))
    for name, parameter in model.named_parameters():
        is_embedding = id(parameter) in embeddings
        is_matrix = parameter.dim() > 1 and not name.endswith("scale") and not is_embedding
        (decayed if is_matrix else kept).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": parameters.weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=parameters.learning_rate,
        betas=(parameters.beta1, parameters.beta2),
        fused=True,
    )
