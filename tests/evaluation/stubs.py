"""Models whose answers are known beforehand, and a small real one whose search converges."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.families.building import build
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.outputs import ImplicitCausalLMOutput


class Stub(ImplicitForCausalLM):
    """Predicts each input token itself, except where ``is_wrong(tokens, positions)`` says so.

    In the simultaneous mode a sequence's search takes its first token plus one steps. With a
    window each token takes itself plus one, after the token before it. The residual is a
    hundredth of the steps. The spectral radius of the cell at a token is a tenth of the token.
    """

    def __init__(
        self,
        is_wrong: Callable[[Tensor, Tensor], Tensor],
        vocabulary_size: int = 8,
        is_implicit: bool = True,
    ) -> None:
        nn.Module.__init__(self)
        self.is_wrong, self.vocabulary_size = is_wrong, vocabulary_size
        self.config = ImplicitMamba2Config(vocab_size=vocabulary_size, implicit=is_implicit)
        self.weight = nn.Parameter(torch.zeros(5))
        self.phases, self.batches = [], []

    def cell(self, tokens: Tensor, carry=None) -> tuple["TokenCell", Tensor]:
        return TokenCell(tokens), torch.zeros(*tokens.shape, 1)

    def forward(self, input_ids: Tensor, use_cache: bool, phase=None) -> ImplicitCausalLMOutput:
        assert not use_cache
        assert (phase is not None) == self.is_implicit
        tokens = input_ids
        assert not torch.is_grad_enabled()
        self.phases.append(phase)
        self.batches.append(tokens)
        positions = torch.arange(tokens.shape[1])
        wrong = self.is_wrong(tokens, positions.expand_as(tokens))
        predicted = (tokens + wrong.long()) % self.vocabulary_size
        logits = F.one_hot(predicted, self.vocabulary_size).float()
        search = None
        if phase is not None:
            windowed, length = phase.window is not None, tokens.shape[1]
            steps = (tokens if windowed else tokens[:, :1]) + 1
            steps = steps.clamp(max=phase.stopping.max_steps)
            depth = steps.sum(1)
            work = depth * (min(phase.window.width, length) if windowed else length)
            tolerance = getattr(phase.stopping, "tolerance", 0.0)
            residual = torch.where(steps > 0, steps / 100.0, torch.nan)
            result = torch.where(residual < tolerance, Result.CONVERGED, Result.OUT_OF_STEPS)
            search = Solution(logits, steps, residual, result.to(torch.uint8), depth, work)
        return ImplicitCausalLMOutput(logits=logits, search=search)


@dataclass
class TokenCell:
    """``z -> token / 10 * z + 1``, token by token; its own window, trail and carry."""

    tokens: Tensor

    def __call__(self, value: Tensor) -> Tensor:
        return self.tokens[..., None] / 10.0 * value + 1.0

    def select(self, rows: Tensor) -> "TokenCell":
        return TokenCell(self.tokens[rows])

    def window(self, rows: Tensor, tokens: Tensor, carry) -> "TokenCell":
        return TokenCell(self.tokens[rows[:, None], tokens])

    def evaluate(self, value: Tensor) -> tuple[Tensor, "TokenCell"]:
        return self(value), self

    def carry(self, counts: Tensor | None = None) -> "TokenCell":
        return self


def contractive_model() -> ImplicitForCausalLM:
    """Return an untrained implicit Mamba2 whose cell hardly depends on ``z``, so it converges."""
    parameters = ModelParameters(
        family="mamba2", implicit=True, num_layers=1, d_model=16, d_state=8, head_dim=8
    )
    model = build(parameters, vocabulary_size=8, seed=0)
    assert isinstance(model, ImplicitForCausalLM)
    with torch.no_grad():
        for block in model.model.stack.blocks:
            block.mixer.in_proj.weight.mul_(0.2)
            block.mixer.out_proj.weight.mul_(3.0)
    return model.eval()
