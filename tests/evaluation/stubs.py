"""Models whose answers are known beforehand, and a small real one whose search converges."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.language_models.building import build
from implicit_models.language_models.modelling import Mamba2LanguageModel, ModelOutput
from implicit_models.language_models.parameters import ModelParameters


class Stub(Mamba2LanguageModel):
    """Predicts each input token itself, except where ``is_wrong(tokens, positions)`` says so.

    The carry is the number of tokens read so far. A sequence's search takes its first token of
    the piece plus one steps, and its residual is a hundredth of that.
    """

    is_implicit = True

    def __init__(
        self,
        is_wrong: Callable[[Tensor, Tensor], Tensor],
        vocabulary_size: int = 8,
        is_implicit: bool = True,
    ) -> None:
        nn.Module.__init__(self)
        self.is_wrong, self.vocabulary_size = is_wrong, vocabulary_size
        self.is_implicit = is_implicit
        self.weight = nn.Parameter(torch.zeros(5))
        self.pieces: list[tuple[int, ...]] = []

    def initial_carry(self, batch: int) -> int:
        return 0

    def forward(self, tokens: Tensor, phase=None, carry=None) -> ModelOutput:
        assert (phase is not None) == self.is_implicit
        assert not torch.is_grad_enabled()
        self.pieces.append(tuple(tokens.shape))
        start = carry or 0
        positions = torch.arange(start, start + tokens.shape[1])
        wrong = self.is_wrong(tokens, positions.expand_as(tokens))
        predicted = (tokens + wrong.long()) % self.vocabulary_size
        logits = F.one_hot(predicted, self.vocabulary_size).float()
        search = None
        if phase is not None:
            steps = (tokens[:, 0] + 1).clamp(max=phase.stopping.max_steps)
            tolerance = getattr(phase.stopping, "tolerance", 0.0)
            residual = torch.where(steps > 0, steps / 100.0, torch.nan)
            result = torch.where(residual < tolerance, Result.CONVERGED, Result.OUT_OF_STEPS)
            search = Solution(logits, steps, residual, result.to(torch.uint8))
        return ModelOutput(logits, start + tokens.shape[1], search)


def contractive_model() -> Mamba2LanguageModel:
    """Give an untrained implicit Mamba2 whose cell hardly depends on ``z``: it always converges."""
    parameters = ModelParameters(
        family="mamba2", implicit=True, num_layers=1, d_model=16, d_state=8, head_dim=8
    )
    model = build(parameters, vocabulary_size=8, seed=0)
    with torch.no_grad():
        for block in model.stack.blocks:
            block.mixer.in_proj.weight.mul_(0.2)
            block.mixer.out_proj.weight.mul_(3.0)
    return model.eval()
