"""How right a model is on held-out sequences while it trains."""

import dataclasses
from collections.abc import Callable

import torch

from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Solution
from implicit_models.language_models.building import LanguageModel
from implicit_models.language_models.losses import aligned_loss
from implicit_models.language_models.reading import read
from implicit_models.training.objectives import accuracies
from implicit_models.training.trainer import Sequences, as_tensor


def validator(
    sequences: Sequences, num_sequences: int, phase: Phase | None, batch_size: int
) -> Callable[[LanguageModel], dict[str, float]]:
    """Give a function that measures a model on the first ``num_sequences`` sequences.

    It runs the model exactly as training does, in the same phase and on batches of the same size,
    and keeps no graph.
    """

    @torch.no_grad()
    def validate(model: LanguageModel) -> dict[str, float]:
        device = next(model.parameters()).device
        was_training = model.training
        model.eval()
        totals: dict[str, float] = {}
        searches = []
        for start in range(0, num_sequences, batch_size):
            rows = slice(start, min(start + batch_size, num_sequences))
            inputs = as_tensor(sequences.inputs[rows], device)
            labels = as_tensor(sequences.labels[rows], device)
            output = read(model, inputs, phase)
            metrics = {"loss": aligned_loss(output.logits, labels).item()}
            metrics |= accuracies(output.logits, labels)
            for name, value in metrics.items():
                totals[name] = totals.get(name, 0.0) + value * len(inputs)
            if output.search is not None:
                searches.append(output.search)
        model.train(was_training)
        means = {name: total / num_sequences for name, total in totals.items()}
        return means | (_joined(searches).metrics() if searches else {})

    return validate


def _joined(searches: list[Solution]) -> Solution:
    """Put the searches of several batches together as that of one."""
    names = (field.name for field in dataclasses.fields(Solution))
    return Solution(
        **{name: torch.cat([getattr(search, name) for search in searches]) for name in names}
    )
