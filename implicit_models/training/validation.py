"""How right a model is on held-out sequences while it trains."""

from collections.abc import Callable

import torch

from implicit_models.equilibrium.phase import Phase
from implicit_models.language_models.building import LanguageModel
from implicit_models.language_models.losses import aligned_loss
from implicit_models.language_models.reading import read
from implicit_models.training.objectives import accuracies
from implicit_models.training.trainer import Sequences, as_tensor


def validator(
    sequences: Sequences, num_sequences: int, phase: Phase | None
) -> Callable[[LanguageModel], dict[str, float]]:
    """Give a function that measures a model on the first ``num_sequences`` sequences.

    It runs the model exactly as training does, in the same phase, and keeps no graph.
    """

    @torch.no_grad()
    def validate(model: LanguageModel) -> dict[str, float]:
        device = next(model.parameters()).device
        inputs = as_tensor(sequences.inputs[:num_sequences], device)
        labels = as_tensor(sequences.labels[:num_sequences], device)
        was_training = model.training
        output = read(model.eval(), inputs, phase)
        model.train(was_training)
        return {
            "loss": aligned_loss(output.logits, labels).item(),
            **accuracies(output.logits, labels),
            **(output.search.metrics() if output.search else {}),
        }

    return validate
