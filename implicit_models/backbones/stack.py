"""Pre-norm residual blocks in a row, and the norm after the last."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from implicit_models.backbones.mamba2 import Mamba2Carry, Mamba2Mixer, Mamba2Trail, Mamba2Weights


class StackCarry(NamedTuple):
    """The carries of all blocks."""

    blocks: tuple[Mamba2Carry, ...]

    def select(self, rows: Tensor) -> "StackCarry":
        """Give the carry of some of the batch's sequences."""
        return StackCarry(tuple(block.select(rows) for block in self.blocks))


class StackTrail(NamedTuple):
    """What an evaluation of all blocks leaves behind, to take a carry from."""

    blocks: tuple[Mamba2Trail, ...]

    def carry(self, counts: Int[Tensor, " B"] | None = None) -> StackCarry:
        """Give the carry after each sequence's first ``counts`` tokens; None means all."""
        return StackCarry(tuple(block.carry(counts) for block in self.blocks))


class Block(nn.Module):
    """``hidden + mixer(norm(hidden))``."""

    def __init__(self, mixer: Mamba2Mixer) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(mixer.shape.d_model))
        self.mixer = mixer

    def forward(
        self,
        hidden: Float[Tensor, "B L D"],
        injection: Float[Tensor, "B L projection"] | None,
        carry: Mamba2Carry | None,
        weights: Mamba2Weights,
    ) -> tuple[Float[Tensor, "B L D"], Mamba2Trail | None]:
        """Apply the block."""
        normed = F.rms_norm(hidden, self.norm.shape, self.norm, self.mixer.norm_epsilon)
        mixed, trail = self.mixer(normed, injection, carry, weights)
        return hidden + mixed, trail


class Stack(nn.Module):
    """Blocks in a row, then a final root-mean-square norm.

    Called once with no injection it is the explicit backbone; as a function of ``hidden`` with
    the injection fixed it is the implicit model's cell. One injection serves all blocks.
    """

    def __init__(self, mixers: Sequence[Mamba2Mixer], norm_epsilon: float) -> None:
        super().__init__()
        self.norm_epsilon = norm_epsilon
        self.blocks = nn.ModuleList(Block(mixer) for mixer in mixers)
        self.norm = nn.Parameter(torch.ones(mixers[0].shape.d_model))

    @property
    def mixers(self) -> list[Mamba2Mixer]:
        """The blocks' mixers, in order."""
        return [block.mixer for block in self.blocks if isinstance(block, Block)]

    def weights(self) -> tuple[Mamba2Weights, ...]:
        """Give every block's effective weights, for every iteration of a solve."""
        return tuple(mixer.weights() for mixer in self.mixers)

    def initial_carry(self, batch: int) -> StackCarry:
        """Give the carry of a sequence's start."""
        return StackCarry(tuple(mixer.initial_carry(batch) for mixer in self.mixers))

    def forward(
        self,
        hidden: Float[Tensor, "B L D"],
        injection: Float[Tensor, "B L projection"] | None,
        carry: StackCarry | None,
        weights: tuple[Mamba2Weights, ...],
    ) -> tuple[Float[Tensor, "B L D"], StackTrail | None]:
        """Apply all blocks and the final norm; a trail comes back where a carry was given."""
        carries = carry.blocks if carry is not None else (None,) * len(self.blocks)
        trails = []
        for block, block_carry, block_weights in zip(self.blocks, carries, weights, strict=True):
            hidden, trail = block(hidden, injection, block_carry, block_weights)
            trails.append(trail)
        hidden = F.rms_norm(hidden, self.norm.shape, self.norm, self.norm_epsilon)
        return hidden, StackTrail(tuple(trails)) if carry is not None else None
