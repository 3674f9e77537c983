"""What the models return."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.utils.generic import ModelOutput

from implicit_models.backbones.stack import StackCarry
from implicit_models.equilibrium.solution import Solution
from implicit_models.language_models.cache import CarryCache
from implicit_models.language_models.padding import Alignment


@dataclass
class ImplicitModelOutput(ModelOutput):
    """Hidden states.

    Attributes
    ----------
    last_hidden_state
        The fixed point, or the explicit stack's output: (B, L, D).
    cache
        For the tokens that follow; None where none is wanted, and as ``search`` in a replica of
        `torch.nn.DataParallel`, which gathers tensors alone.
    hidden_states
        The inputs of all blocks in the last evaluation, and the output; None unless asked for.
    self_iterations
        Evaluations of the cell that gave each token's hidden state, those after the search
        included: (B, L), 0 for padding. Beside a gradient, one more that gives the cache or
        ``hidden_states`` is not counted. None for explicit models, as the next two.
    search
        How the fixed point was found.
    penalty
        What the phase adds to a loss; None where it adds nothing.
    """

    last_hidden_state: Float[Tensor, "B L D"] | None = None
    cache: CarryCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    self_iterations: Int[Tensor, "B L"] | None = None
    search: Solution | None = None
    penalty: Float[Tensor, ""] | None = None


@dataclass
class ImplicitCausalLMOutput(ModelOutput):
    """Logits for each token; the rest as in `ImplicitModelOutput`.

    Attributes
    ----------
    loss
        The configuration's loss of the labels, the penalty included, or that of the targets,
        without it; None without either.
    logits
        (B, L, V), aligned with the tokens; fewer tokens with ``logits_to_keep``; None with targets.
    predictions
        The likeliest token after each one, with targets.
    center
        What `center_loss` adds to the loss of the targets; None without a weight of it.
    """

    loss: Float[Tensor, ""] | None = None
    logits: Float[Tensor, "B kept V"] | None = None
    cache: Any = None
    hidden_states: tuple[Tensor, ...] | None = None
    self_iterations: Int[Tensor, "B L"] | None = None
    search: Solution | None = None
    penalty: Float[Tensor, ""] | None = None
    predictions: Int[Tensor, "B L"] | None = None
    center: Float[Tensor, ""] | None = None


@dataclass(frozen=True)
class Evaluated:
    """What the stack, or the search of its fixed point, makes of embeddings.

    Attributes
    ----------
    carry
        After the tokens; None where nobody asked for it.
    states
        The inputs of all blocks and the output; None where nobody asked for them.
    search, penalty, self_iterations
        Of an implicit model, as in `ImplicitModelOutput`.
    """

    hidden: Tensor
    carry: StackCarry | None
    states: list[Tensor] | None
    search: Solution | None = None
    penalty: Tensor | None = None
    self_iterations: Tensor | None = None

    def back(self, alignment: Alignment) -> "Evaluated":
        """Return the same with each token where it stood before the alignment."""
        return replace(
            self,
            hidden=alignment.back(self.hidden),
            states=None if self.states is None else [alignment.back(each) for each in self.states],
            search=None if self.search is None else alignment.search_back(self.search),
            self_iterations=None
            if self.self_iterations is None
            else alignment.back(self.self_iterations),
        )


def count_self_iterations(
    steps: Tensor, after: int, size: tuple[int, int], lengths: Tensor | None
) -> Int[Tensor, "B L"]:
    """Count each token's evaluations: those of the search, and as many as came after it."""
    iterations = (steps + after).expand(size)
    if lengths is None:
        return iterations.clone()
    inside = torch.arange(size[1], device=lengths.device) < lengths[:, None]
    return iterations * inside
