"""How right a model is on held-out sequences while it trains."""

import dataclasses
from collections.abc import Callable

import torch
from torch import nn

from implicit_models.equilibrium.gradients import Unrolled
from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.stopping import FixedSteps
from implicit_models.training.objectives import accuracies, aligned_loss
from implicit_models.training.trainer import Sequences, as_tensor


def validator(
    sequences: Sequences, num_sequences: int, phase: Phase | None
) -> Callable[[nn.Module], dict[str, float]]:
    """Give a function that measures a model on the first ``num_sequences`` sequences.

    It runs the model as training does, less the gradient.
    """
    quiet = None if phase is None else without_gradient(phase)

    @torch.no_grad()
    def validate(model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        inputs = as_tensor(sequences.inputs[:num_sequences], device)
        labels = as_tensor(sequences.labels[:num_sequences], device)
        was_training = model.training
        output = model.eval()(inputs, quiet)
        model.train(was_training)
        loss = aligned_loss(output.logits, labels).item()
        return {"loss": loss, **accuracies(output.logits, labels)}

    return validate


def without_gradient(phase: Phase) -> Phase:
    """Give the phase that evaluates as often as this one and keeps no gradient."""
    if isinstance(phase.gradient, Unrolled) and isinstance(phase.stopping, FixedSteps):
        # The output is one evaluation after the search.
        num_steps = phase.stopping.num_steps + phase.gradient.num_steps - 1
        return dataclasses.replace(phase, stopping=FixedSteps(num_steps), gradient=None)
    return dataclasses.replace(phase, gradient=None)
