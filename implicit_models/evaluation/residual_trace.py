"""The residual of every token at every evaluation of a search, for a look."""

import numpy as np
import torch
from jaxtyping import Float, Integer

from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase
from implicit_models.language_models.modelling import ImplicitForCausalLM


@torch.inference_mode()
def trace_residual(
    model: ImplicitForCausalLM, tokens: Integer[np.ndarray, " L"], phase: Phase
) -> Float[np.ndarray, "S L"]:
    """Return the relative residual of every token of one sequence at each evaluation of a search.

    With a window a token that it has not reached yet is NaN, and one that it has left keeps its
    last residual.
    """
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    batch = torch.from_numpy(np.array(tokens, dtype=np.int64)[None]).to(device)
    cell, start = model.cell(batch)
    residuals: list[np.ndarray] = []

    def observe(step: int, residual: Float[torch.Tensor, "B L"]) -> None:
        residuals.append(residual[0].float().cpu().numpy())

    find_fixed_point(
        cell, start, phase.solver, phase.stopping, window=phase.window, observe=observe
    )
    return np.stack(residuals)
