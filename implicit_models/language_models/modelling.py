"""Mamba2 language models, explicit and implicit, from one stack."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from implicit_models.backbones.linear import NormalisedWeight
from implicit_models.backbones.mamba2 import Mamba2Mixer, Mamba2Shape, Mamba2Weights
from implicit_models.backbones.stack import Stack, StackCarry, StackTrail
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Solution
from implicit_models.language_models.padding import Alignment
from implicit_models.language_models.parameters import ModelParameters


@dataclass(frozen=True)
class ModelOutput:
    """What a model gives for a piece of text.

    Attributes
    ----------
    logits
        (B, L, V), aligned with the tokens.
    carry
        What the next piece needs; None unless a carry was given.
    search
        How the fixed point was found; None for explicit models.
    penalty
        What the phase adds to a loss; None where it adds nothing.
    """

    logits: Float[Tensor, "B L V"]
    carry: Any
    search: Solution | None
    penalty: Float[Tensor, ""] | None = None


@dataclass(frozen=True)
class StackCell:
    """The cell ``f(z)`` of an implicit model, with everything else it reads frozen inside."""

    stack: Stack
    weights: tuple[Mamba2Weights, ...]
    injection: Float[Tensor, "B L projection"]
    carry: StackCarry | None

    def __call__(self, value: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Evaluate the cell."""
        return self.stack(value, self.injection, self.carry, self.weights)[0]

    def evaluate(self, value: Float[Tensor, "B L D"]) -> tuple[Tensor, StackTrail]:
        """Evaluate the cell, leaving a trail to the carry after it; a carry must be there."""
        hidden, trail = self.stack(value, self.injection, self.carry, self.weights)
        assert trail is not None
        return hidden, trail

    def select(self, rows: Int[Tensor, " R"]) -> "StackCell":
        """Give the cell of some of the batch's sequences."""
        carry = None if self.carry is None else self.carry.select(rows)
        return StackCell(self.stack, self.weights, self.injection[rows], carry)

    def window(
        self, rows: Int[Tensor, " R"], tokens: Int[Tensor, "R W"], carry: StackCarry | None
    ) -> "StackCell":
        """Give some sequences' tokens; ``carry`` None where they are the first."""
        if carry is None:
            carry = self.carry or self.stack.initial_carry(len(self.injection))
            carry = carry.select(rows)
        return StackCell(self.stack, self.weights, self.injection[rows[:, None], tokens], carry)


class Mamba2LanguageModel(nn.Module):
    """Embedding, Mamba2 stack, head tied to the embedding.

    The explicit model calls its stack once on the embeddings. The implicit model seeks the
    fixed point of the same stack, started from zero, with one projection of the embeddings
    injected into every block (paper, section 3).

    Initialisation
    --------------
    ================================  ==========================================================
    embeddings (and the tied head)    normal, mean 0, standard deviation ``embedding_std``
    injection: projection.weight      uniform in +-1/sqrt(d_model)
    injection: bias                   0
    every norm's weight               1
    mixer: in_proj.weight             uniform in +-1/sqrt(d_model)
    mixer: conv1d.weight, its bias    uniform in +-1/sqrt(conv_kernel)
    mixer: dt_bias                    inverse softplus of a time step log-uniform in [.001, .1]
    mixer: A_log                      log of a decay rate uniform in [1, 16]
    mixer: D                          1
    mixer: out_proj.weight            uniform in +-1/sqrt(d_inner num_layers)
    every scale                       row length of its weight: normalising changes nothing yet
    ================================  ==========================================================
    """

    def __init__(self, parameters: ModelParameters, vocabulary_size: int, seed: int) -> None:
        super().__init__()
        assert parameters.family == "mamba2" and parameters.d_state and parameters.head_dim
        self.parameters_section = parameters
        self.vocabulary_size = vocabulary_size
        generator = torch.Generator().manual_seed(seed)
        shape = Mamba2Shape(
            d_model=parameters.d_model,
            d_state=parameters.d_state,
            expand=parameters.expand,
            head_dim=parameters.head_dim,
            num_groups=parameters.num_groups,
            conv_kernel=parameters.conv_kernel,
        )
        embeddings = torch.empty(vocabulary_size, parameters.d_model)
        self.embeddings = nn.Parameter(
            embeddings.normal_(0.0, parameters.embedding_std, generator=generator)
        )
        mixers = [
            Mamba2Mixer(
                shape,
                num_layers=parameters.num_layers,
                normalised_weights=parameters.weight_normalisation,
                norm_epsilon=parameters.norm_epsilon,
                chunk_length=parameters.chunk_length,
                generator=generator,
            )
            for _ in range(parameters.num_layers)
        ]
        self.stack = Stack(mixers, parameters.norm_epsilon)
        self.injection: Injection | None = None
        if parameters.implicit:
            self.injection = Injection(parameters, shape.d_projection, generator)

    @property
    def is_implicit(self) -> bool:
        """Whether a forward pass seeks a fixed point."""
        return self.injection is not None

    def initial_carry(self, batch: int) -> StackCarry:
        """Give the carry of a text's start, for texts that come in pieces."""
        return self.stack.initial_carry(batch)

    def cell(
        self, tokens: Int[Tensor, "B L"], carry: StackCarry | None = None
    ) -> tuple[StackCell, Float[Tensor, "B L D"]]:
        """Give the implicit model's cell for these tokens, and the start of the search: zero."""
        if self.injection is None:
            raise ValueError("an explicit model has no cell; call the model itself")
        embedded = F.embedding(tokens, self.embeddings)
        cell = StackCell(self.stack, self.stack.weights(), self.injection(embedded), carry)
        return cell, torch.zeros_like(embedded)

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        phase: Phase | None = None,
        carry: StackCarry | None = None,
        attention_mask: Tensor | None = None,
    ) -> ModelOutput:
        """Give logits for each token.

        Parameters
        ----------
        phase
            How to search and differentiate; needed by an implicit model, None for an explicit one.
        carry
            Where a former piece left off (`initial_carry` at the start of a text in pieces). None
            for a whole text, whose carry is not wanted.
        attention_mask
            (B, L), false or 0 at padding, which may stand on either side of each sequence and then
            changes nothing: not the search, the other tokens' logits, or the carry. The logits
            of padding mean nothing, and no loss may count them.

        Raises
        ------
        ValueError
            Where ``phase`` does not fit the kind of model, or the mask has holes.
        """
        if self.is_implicit != (phase is not None):
            kind, wanted = ("implicit", "a Phase") if self.is_implicit else ("explicit", "None")
            raise ValueError(f"phase is {phase}; this {kind} model takes {wanted}")
        alignment = None if attention_mask is None else Alignment.of(attention_mask, tokens)
        if alignment is not None:
            tokens = alignment.to_the_left(tokens)
        lengths = None if alignment is None else alignment.lengths

        search, penalty = None, None
        if phase is None:
            embedded = F.embedding(tokens, self.embeddings)
            hidden, trail = self.stack(embedded, None, carry, self.stack.weights())
        else:
            cell, start = self.cell(tokens, carry)
            search = find_fixed_point(
                cell, start, phase.solver, phase.stopping, window=phase.window, lengths=lengths
            )
            value = search.value
            if phase.gradient is not None:
                value = phase.gradient(cell, value)
            if phase.penalty is not None and torch.is_grad_enabled():
                penalty = phase.penalty(cell, value, lengths)
            hidden, trail = value, None
            if phase.gradient is None or carry is not None:
                evaluated, trail = self.stack(value, cell.injection, carry, cell.weights)
                hidden = evaluated if phase.gradient is None else value
        after = None if trail is None else trail.carry(lengths)
        if alignment is not None:
            hidden = alignment.back(hidden)
            search = None if search is None else alignment.search_back(search)
        return ModelOutput(F.linear(hidden, self.embeddings), after, search, penalty)


class Injection(nn.Module):
    """``Linear(norm(embedding))``, of the width of the mixers' input projection."""

    def __init__(self, parameters: ModelParameters, width: int, generator: torch.Generator) -> None:
        super().__init__()
        d_model = parameters.d_model
        self.norm_epsilon = parameters.norm_epsilon
        self.norm = nn.Parameter(torch.ones(d_model))
        bound = d_model**-0.5
        weight = torch.empty(width, d_model).uniform_(-bound, bound, generator=generator)
        self.projection = NormalisedWeight(weight, parameters.weight_normalisation)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, embedded: Float[Tensor, "B L D"]) -> Float[Tensor, "B L projection"]:
        """Project embeddings."""
        normed = F.rms_norm(embedded, self.norm.shape, self.norm, self.norm_epsilon)
        return F.linear(normed, self.projection.effective(), self.bias)
