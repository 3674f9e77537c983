"""The two ways to run a text: all tokens together, or one after another."""

import torch
from jaxtyping import Int
from torch import Tensor

from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Solution
from implicit_models.language_models.building import LanguageModel
from implicit_models.language_models.modelling import ModelOutput


@torch.no_grad()
def sequential(
    model: LanguageModel, tokens: Int[Tensor, "B L"], phase: Phase | None, carry: object = None
) -> ModelOutput:
    """Run the model token by token, each one's fixed point found before the next is read.

    The paper's sequential mode (section 3.3), as in generation; the model's own forward pass
    is the simultaneous one. Without gradient. In the result's ``search`` everything but
    ``value`` is per token: (B, L). The carry always comes back.
    """
    carry = model.initial_carry(tokens.shape[0]) if carry is None else carry
    logits: list[Tensor] = []
    searches: list[Solution] = []
    for position in range(tokens.shape[1]):
        output = model(tokens[:, position : position + 1], phase, carry)
        carry = output.carry
        logits.append(output.logits)
        if output.search is not None:
            searches.append(output.search)
    search = None
    if searches:
        search = Solution(
            torch.cat([each.value for each in searches], dim=1),
            torch.stack([each.steps for each in searches], dim=1),
            torch.stack([each.residual for each in searches], dim=1),
            torch.stack([each.result for each in searches], dim=1),
        )
    return ModelOutput(torch.cat(logits, dim=1), carry, search)
