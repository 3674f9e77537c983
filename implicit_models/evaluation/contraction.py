"""How strongly a model's cell contracts at the fixed points that its search finds."""

import numpy as np
import torch
from jaxtyping import Float, Integer

from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.jacobian import token_spectral_radius
from implicit_models.equilibrium.phase import Phase
from implicit_models.language_models.modelling import Mamba2LanguageModel


@torch.no_grad()
def spectral_radii(
    model: Mamba2LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    *,
    phase: Phase,
    batch_size: int,
    damping: float = 1.0,
) -> Float[np.ndarray, " N"]:
    """Estimate the spectral radius of the cell's Jacobian where each sequence's search ends.

    That is the largest of its tokens'. Below 1 plain iteration converges from nearby; above 1 a
    damped one may, where the large eigenvalues are negative: with a ``damping`` the radius is that
    of the damped iteration. Where a search did not converge, it is of where it stopped.

    Tokens are walked through one by one, so the cost is that of the sequential mode.
    """
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    radii = []
    for start in range(0, len(inputs), batch_size):
        batch = np.array(inputs[start : start + batch_size], dtype=np.int64)
        cell, zero = model.cell(torch.from_numpy(batch).to(device))
        found = find_fixed_point(cell, zero, phase.solver, phase.stopping, window=phase.window)
        radii.append(
            token_spectral_radius(cell, found.value, damping=damping).amax(1).cpu().numpy()
        )
    return np.concatenate(radii).astype(np.float64)
