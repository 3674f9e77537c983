"""The cell of an implicit model: what the engine searches the fixed point of."""

import functools
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from implicit_models.backbones.linear import NormalisedWeight
from implicit_models.backbones.stack import Keep, Stack, StackCarry, StackTrail, StackWeights
from implicit_models.equilibrium.stopping import Measure, relative_residual
from implicit_models.kernels.cuda_graph import GraphedCallable, uses_cuda_graphs
from implicit_models.kernels.dispatch import kernels_for


@dataclass(frozen=True)
class StackCell:
    """The cell ``f(z)``, with everything else it reads frozen inside."""

    measure: ClassVar[Measure] = staticmethod(relative_residual)
    stack: Stack
    weights: StackWeights
    injection: Float[Tensor, "B L projection"]
    carry: StackCarry | None
    positions: Any
    checkpointing: bool
    graphed: dict[float, GraphedCallable] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        stack: Stack,
        weights: StackWeights,
        injection: Float[Tensor, "B L projection"],
        carry: StackCarry | None,
        checkpointing: bool = False,
    ) -> "StackCell":
        """Make a cell of all tokens that have an injection."""
        positions = stack.positions(carry, injection.shape[1])
        return cls(stack, weights, injection, carry, positions, checkpointing)

    def __call__(
        self, value: Float[Tensor, "B L D"], hidden_states: list[Tensor] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Evaluate the cell; ``hidden_states`` takes the input of each block, and the output."""
        return self._evaluate(value, None, hidden_states)[0]

    def evaluate(self, value: Float[Tensor, "B L D"]) -> tuple[Tensor, StackTrail]:
        """Evaluate the cell, leaving a trail to the carry after it; a carry must be there."""
        assert self.carry is not None
        hidden, trails = self._evaluate(value, lambda trail: trail)
        return hidden, StackTrail(trails)

    def iterate(
        self, value: Float[Tensor, "B L D"], damping: float, keeps_trail: bool
    ) -> tuple[Tensor, Tensor, StackTrail | None]:
        """Step towards the cell's value, all in one pass over the last block's output."""
        if keeps_trail or self.carry is not None or not uses_cuda_graphs(value.device):
            keep = (lambda trail: trail) if keeps_trail else None
            following, residual, trails = self._iterate(value, damping, keep)
            return following, residual, StackTrail(trails) if keeps_trail else None
        if damping not in self.graphed:
            # Not a method of this cell: the cell would live as long as its graph.
            inputs = (self.injection, self.carry, self.weights, self.positions)
            iterate = functools.partial(_iterate, self.stack, inputs, damping)
            self.graphed[damping] = GraphedCallable(iterate)
        following, residual = self.graphed[damping](value)
        return following, residual, None

    def advance(
        self,
        value: Float[Tensor, "B L D"],
        counts: Int[Tensor, " B"] | None = None,
        hidden_states: list[Tensor] | None = None,
    ) -> tuple[Tensor, StackCarry]:
        """Evaluate the cell and return the carry after each sequence's first ``counts`` tokens.

        A carry must be there.
        """
        assert self.carry is not None
        hidden, carries = self._evaluate(value, methodcaller("carry", counts), hidden_states)
        return hidden, StackCarry(carries)

    def select(self, rows: Int[Tensor, " R"]) -> "StackCell":
        """Return the cell of some of the batch's sequences."""
        carry = None if self.carry is None else self.carry.select(rows)
        return self._with(self.injection[rows], carry)

    def window(
        self, rows: Int[Tensor, " R"], tokens: Int[Tensor, "R W"], carry: StackCarry | None
    ) -> "StackCell":
        """Return some sequences' tokens; ``carry`` None where they are the first."""
        if carry is None:
            carry = self.carry or self.stack.initial_carry(len(self.injection))
            carry = carry.select(rows)
        length, width = self.injection.shape[1:]
        flat = (rows[:, None] * length + tokens).flatten()
        injection = self.injection.reshape(-1, width).index_select(0, flat)
        return self._with(injection.view(*tokens.shape, width), carry)

    def _iterate(
        self, value: Tensor, damping: float, keep: Keep | None
    ) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
        return self.stack.iterate(
            value, self.injection, self.carry, self.weights, self.positions, damping, keep
        )

    def _evaluate(
        self, value: Tensor, keep: Keep | None, hidden_states: list[Tensor] | None = None
    ) -> tuple[Tensor, tuple[Any, ...]]:
        return self.stack(
            value,
            self.injection,
            self.carry,
            self.weights,
            self.positions,
            keep=keep,
            checkpointing=self.checkpointing,
            hidden_states=hidden_states,
        )

    def _with(self, injection: Tensor, carry: StackCarry | None) -> "StackCell":
        return StackCell.of(self.stack, self.weights, injection, carry, self.checkpointing)


def _iterate(
    stack: Stack, inputs: tuple[Any, ...], damping: float, value: Tensor
) -> tuple[Tensor, ...]:
    injection, carry, weights, positions = inputs
    return stack.iterate(value, injection, carry, weights, positions, damping)[:2]


class Injection(nn.Module):
    """``Linear(norm(embedding))``, of the width of the mixers' input projection."""

    def __init__(
        self, d_model: int, width: int, *, normalised_weights: bool, norm_epsilon: float
    ) -> None:
        super().__init__()
        self.d_model, self.norm_epsilon = d_model, norm_epsilon
        self.norm = nn.Parameter(torch.empty(d_model))
        self.projection = NormalisedWeight(width, d_model, normalised=normalised_weights)
        self.bias = nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        """Draw the initial weights, as tabulated in `ImplicitForCausalLM`."""
        nn.init.ones_(self.norm)
        self.projection.reset(self.d_model**-0.5)
        nn.init.zeros_(self.bias)

    def forward(self, embedded: Float[Tensor, "B L D"]) -> Float[Tensor, "B L projection"]:
        """Project embeddings."""
        rms_norm = kernels_for(embedded.device).rms_norm
        normed = rms_norm(embedded, self.norm, self.norm_epsilon)
        return F.linear(normed, self.projection.effective(), self.bias)
