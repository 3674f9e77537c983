"""Attention to a token and those of a window before it (Beltagy et al. 2020), as Mistral's.

All that later tokens need are the keys and values of so many: a carry of a size that does not grow.
Keys are kept as they are before their rotation, and a carry's first slot is always position 0: only
differences of positions matter, so none grows with the text.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.backbones.attention import AttentionMixer, AttentionPositions, AttentionShape
from implicit_models.backbones.rotary import Rotary
from implicit_models.kernels.reference import rotate
from implicit_models.kernels.sliding_attention import (
    SlidingMasks,
    sliding_attention,
    sliding_masks,
)


class SlidingCarry(NamedTuple):
    """The keys and values of each sequence's last ``window - 1`` tokens.

    Attributes
    ----------
    keys, values
        A slot for each, the newest last; the keys are not rotated. Slots before a text hold zeros.
    lengths
        How many slots of a sequence hold a token: the last ones.
    """

    keys: Float[Tensor, "B slots G P"]
    values: Float[Tensor, "B slots G P"]
    lengths: Int[Tensor, " B"]

    @property
    def by_sequence(self) -> Float[Tensor, "B slots G P"]:
        """The keys."""
        return self.keys

    @property
    def reach(self) -> int:
        """Keys that a token attends to before its own, masked ones included."""
        return self.keys.shape[1]

    def select(self, rows: Tensor) -> "SlidingCarry":
        """Return the carry of some of the batch's sequences."""
        return SlidingCarry(*(tensor[rows] for tensor in self))


class SlidingTrail(NamedTuple):
    """What an evaluation leaves behind, from which the carry after any of its tokens follows.

    Attributes
    ----------
    keys, values
        Of the carry's slots, and of the tokens behind them.
    before
        How many of the slots held a token.
    num_slots
        Of a carry.
    """

    keys: Float[Tensor, "B S G P"]
    values: Float[Tensor, "B S G P"]
    before: Int[Tensor, " B"]
    num_slots: int

    def carry(self, counts: Int[Tensor, " B"] | None = None) -> SlidingCarry:
        """Return the carry after each sequence's first ``counts`` tokens; None means all."""
        if counts is None:
            counts = torch.full_like(self.before, self.keys.shape[1] - self.num_slots)
        rows = torch.arange(len(counts), device=counts.device)[:, None]
        slots = counts[:, None] + torch.arange(self.num_slots, device=counts.device)
        lengths = (self.before + counts).clamp(max=self.num_slots)
        return SlidingCarry(self.keys[rows, slots], self.values[rows, slots], lengths)


@dataclass(frozen=True)
class SlidingPositions:
    """Where the slots and the tokens stand, the same for all blocks of a stack.

    Attributes
    ----------
    cosine, sine
        The rotations of the slots, the tokens behind them.
    """

    cosine: Float[Tensor, "1 S 1 P"]
    sine: Float[Tensor, "1 S 1 P"]
    masks: SlidingMasks


class SlidingAttentionMixer(AttentionMixer):
    """Attention of which a token reaches itself and ``window - 1`` tokens before it.

    A whole text that is no longer goes through the kernel of `AttentionMixer`. Where the window is
    padded, the slots before a text are attended to as well: their keys and values are zero, as what
    stands before a text is to a causal convolution.
    """

    def __init__(
        self,
        shape: AttentionShape,
        rotary: Rotary,
        *,
        window: int,
        is_padded: bool = False,
        num_layers: int,
        normalised_weights: bool,
    ) -> None:
        super().__init__(
            shape, rotary, num_layers=num_layers, normalised_weights=normalised_weights
        )
        self.num_slots, self.is_padded = window - 1, is_padded

    def initial_carry(self, batch: int) -> SlidingCarry:
        """Return the carry at the start of a sequence: empty slots."""
        like, shape = self.qkv_proj.weight, self.shape
        size = (batch, self.num_slots, shape.num_key_value_heads, shape.head_dim)
        lengths = torch.zeros(batch, dtype=torch.int64, device=like.device)
        keys, values = (torch.zeros(size, dtype=like.dtype, device=like.device) for _ in range(2))
        return SlidingCarry(keys, values, lengths)

    def positions(
        self, carry: SlidingCarry | None, length: int
    ) -> SlidingPositions | AttentionPositions:
        """Place the next ``length`` tokens of each sequence."""
        if self._is_short(carry, length):
            return super().positions(None, length)
        like = self.qkv_proj.weight
        slots = torch.arange(self.num_slots + length, device=like.device)[None]
        if self.is_padded:
            filled = slots.new_full((1,), self.num_slots)
        else:
            filled = slots.new_zeros(1) if carry is None else carry.lengths
        masks = sliding_masks(length, self.num_slots + 1, filled)
        return SlidingPositions(*self.rotary.angles(slots, like.dtype), masks)

    def _attend(
        self,
        queries: Float[Tensor, "B L H P"],
        keys: Float[Tensor, "B L G P"],
        values: Float[Tensor, "B L G P"],
        carry: SlidingCarry | None,
        positions: Any,
    ) -> tuple[Float[Tensor, "B L H P"], Any]:
        """Attend to the tokens and to what the carry holds."""
        if self._is_short(carry, queries.shape[1]):
            return super()._attend(queries, keys, values, None, positions)
        slots = (None, None) if carry is None else carry[:2]
        keys, values = self._behind(slots[0], keys), self._behind(slots[1], values)
        cosine, sine = positions.cosine.to(keys.dtype), positions.sine.to(keys.dtype)
        own = slice(self.num_slots, None)
        mixed = sliding_attention(
            rotate(queries, cosine[:, own], sine[:, own]),
            rotate(keys, cosine, sine),
            values,
            positions.masks,
        )
        if carry is None:
            return mixed, None
        return mixed, SlidingTrail(keys, values, carry.lengths, self.num_slots)

    def _is_short(self, carry: SlidingCarry | None, length: int) -> bool:
        """Return whether it is a whole text in which a token attends to all before it alone."""
        return carry is None and length <= self.num_slots + 1 and not self.is_padded

    def _behind(self, slots: Tensor | None, tokens: Tensor) -> Tensor:
        """Put tokens behind a carry's slots, or behind empty ones."""
        if slots is None:
            return F.pad(tokens, (0, 0, 0, 0, self.num_slots, 0))
        return torch.cat((slots.to(tokens.dtype), tokens), dim=1)
