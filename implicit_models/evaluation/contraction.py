"""How strongly a model's cell contracts at the fixed points that its search finds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer

from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.jacobian import token_spectral_radius
from implicit_models.equilibrium.phase import Phase
from implicit_models.language_models.language_model import LanguageModel


def spectral_radii(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    *,
    phase: Phase,
    batch_size: int,
    dampings: Sequence[float] = (1.0,),
) -> Float[np.ndarray, "dampings N"]:
    """Estimate the spectral radius of the damped iteration of each sequence.

    That is the largest of its tokens'; see `token_radii`.
    """
    return token_radii(model, inputs, phase=phase, batch_size=batch_size, dampings=dampings).max(-1)


@torch.no_grad()
def token_radii(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    *,
    phase: Phase,
    batch_size: int,
    dampings: Sequence[float] = (1.0,),
) -> Float[np.ndarray, "dampings N L"]:
    """Estimate the spectral radius of the damped iteration where each search of a model ends.

    It is that of a token's own block of the Jacobian, and with damping 1 of the cell's. Below 1
    the iteration converges from nearby. Where a search did not converge, it is of where it
    stopped.

    Tokens are walked through one by one, so the cost is that of the sequential mode.
    """
    make_cell: Any = model.cell
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    radii = []
    for start in range(0, len(inputs), batch_size):
        batch = np.array(inputs[start : start + batch_size], dtype=np.int64)
        tokens = torch.from_numpy(batch).to(device)
        cell, zero = make_cell(tokens)
        found = find_fixed_point(cell, zero, phase.solver, phase.stopping, window=phase.window)
        # One walk for all dampings, each with rows of its own.
        cell, _ = make_cell(tokens.repeat(len(dampings), 1))
        value = found.value.repeat(len(dampings), 1, 1)
        weights = torch.tensor(dampings, device=device).repeat_interleave(len(batch))
        walked = token_spectral_radius(cell, value, damping=weights)
        radii.append(walked.reshape(len(dampings), *batch.shape).double().cpu().numpy())
    return np.concatenate(radii, axis=1)
