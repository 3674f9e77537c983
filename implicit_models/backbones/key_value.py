"""Keys and values of past tokens, of sequences of unequal length.

A `KeyValueCarry` is a value: whatever is done with it, it goes on meaning the same keys. Still
nothing is copied token by token: carries that follow one another share a buffer, in which each
token has its slot. Only the newest of them may write behind its last token; any other copies
first.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def _nobody() -> None:
    return None


class _Buffer:
    """Slots for keys and values, (B, S, G, P), and who may write into them.

    Slots that nobody has written hold zeros: a masked key may be anything but not a number.

    Attributes
    ----------
    newest
        The carry that holds the most tokens, as long as somebody has it.
    written
        The trail whose tokens stand behind it.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.newest: Callable[[], KeyValueCarry | None] = _nobody
        self.written: Callable[[], KeyValueTrail | None] = _nobody

    def __reduce__(self) -> tuple[type, tuple[Tensor, Tensor]]:
        return _Buffer, (self.keys, self.values)  # to a copy nobody may write

    def make_room(self, num_slots: int) -> None:
        if num_slots > self.keys.shape[1]:
            more = max(num_slots, self.keys.shape[1] * 3 // 2, 32) - self.keys.shape[1]
            self.keys = F.pad(self.keys, (0, 0, 0, 0, 0, more))
            self.values = F.pad(self.values, (0, 0, 0, 0, 0, more))


@dataclass(frozen=True, eq=False)
class KeyValueCarry:
    """The keys and values of each sequence's tokens so far.

    Attributes
    ----------
    lengths
        Tokens of each sequence: it fills the first so many slots of its row.
    reach
        The largest of them.
    is_uniform
        Whether it is known that all of them are equal.
    """

    buffer: _Buffer
    lengths: Int[Tensor, " B"]
    reach: int
    is_uniform: bool

    @classmethod
    def of(cls, keys: Float[Tensor, "B S G P"], values: Float[Tensor, "B S G P"]):
        """Hold the keys and values of sequences of equal length."""
        batch, length = keys.shape[:2]
        lengths = torch.full((batch,), length, device=keys.device)
        return cls._newest(_Buffer(keys, values), lengths, length, True)

    @classmethod
    def _newest(cls, buffer: _Buffer, lengths: Tensor, reach: int, is_uniform: bool):
        carry = cls(buffer, lengths, reach, is_uniform)
        buffer.newest = weakref.ref(carry)
        return carry

    @property
    def keys(self) -> Float[Tensor, "B reach G P"]:
        """The keys; those of a sequence shorter than ``reach`` are followed by others' leavings."""
        return self.buffer.keys[:, : self.reach]

    @property
    def values(self) -> Float[Tensor, "B reach G P"]:
        """The values, like the keys."""
        return self.buffer.values[:, : self.reach]

    def slots(self, length: int) -> Int[Tensor, "#B L"]:
        """Give the slots, which are the positions, of each sequence's next tokens."""
        tokens = torch.arange(length, device=self.lengths.device)
        return (self.reach + tokens)[None] if self.is_uniform else self.lengths[:, None] + tokens

    def select(self, rows: Tensor) -> "KeyValueCarry":
        """Give the carry of some of the batch's sequences."""
        buffer = _Buffer(self.keys[rows], self.values[rows])
        return self._newest(buffer, self.lengths[rows], self.reach, self.is_uniform)

    def with_tokens(
        self, keys: Float[Tensor, "B L G P"], values: Float[Tensor, "B L G P"]
    ) -> tuple[Float[Tensor, "B S G P"], Float[Tensor, "B S G P"], "KeyValueTrail"]:
        """Put more tokens behind those of the carry, which itself stays as it is.

        Returns all keys and all values, S = reach + L of them, and the trail.
        """
        length = keys.shape[1]
        end = self.reach + length
        buffer = self.buffer
        keys, values = keys.to(buffer.keys.dtype), values.to(buffer.keys.dtype)  # of autocast
        differentiable = torch.is_grad_enabled() and (
            keys.requires_grad or values.requires_grad or buffer.keys.requires_grad
        )
        frozen = buffer.keys.requires_grad  # a backward pass may still read it
        frozen |= buffer.keys.is_inference() and not torch.is_inference_mode_enabled()
        if differentiable or frozen or buffer.newest() is not self:
            buffer = _Buffer(self.keys, self.values)
        if differentiable:
            room = (0, 0, 0, 0, 0, length)
            where = self._where(length)
            buffer.keys = F.pad(buffer.keys, room).index_put(where, keys)
            buffer.values = F.pad(buffer.values, room).index_put(where, values)
        else:
            if buffer is not self.buffer:
                buffer.keys, buffer.values = buffer.keys.clone(), buffer.values.clone()
            is_first = self.is_uniform and not buffer.keys.shape[1]
            if not is_first:
                buffer.make_room(end)
            if is_first:
                buffer.keys = keys.to(buffer.keys.dtype, copy=True)
                buffer.values = values.to(buffer.values.dtype, copy=True)
            elif self.is_uniform:
                buffer.keys[:, self.reach : end] = keys
                buffer.values[:, self.reach : end] = values
            else:
                where = self._where(length)
                buffer.keys[where] = keys
                buffer.values[where] = values
        trail = KeyValueTrail(self, buffer, keys, values)
        buffer.written = weakref.ref(trail)
        return buffer.keys[:, :end], buffer.values[:, :end], trail

    def _where(self, length: int) -> tuple[Tensor, Tensor]:
        rows = torch.arange(len(self.lengths), device=self.lengths.device)
        return rows[:, None], self.slots(length).expand(len(rows), -1)


@dataclass(frozen=True, eq=False)
class KeyValueTrail:
    """What an evaluation leaves behind, from which the carry after any of its tokens follows."""

    before: KeyValueCarry
    buffer: _Buffer
    new_keys: Float[Tensor, "B L G P"]
    new_values: Float[Tensor, "B L G P"]

    def carry(self, counts: Int[Tensor, " B"] | None = None) -> KeyValueCarry:
        """Give the carry after each sequence's first ``counts`` tokens; None means all."""
        before, buffer = self.before, self.buffer
        if buffer.written() is not self:
            buffer = before.with_tokens(self.new_keys, self.new_values)[2].buffer
        buffer.written = _nobody  # from now on they are the new carry's
        length = self.new_keys.shape[1]
        if counts is None:
            lengths, reach = before.lengths + length, before.reach + length
            return KeyValueCarry._newest(buffer, lengths, reach, before.is_uniform)
        lengths = before.lengths + counts
        reach = int(lengths.max()) if len(lengths) else 0
        return KeyValueCarry._newest(buffer, lengths, reach, False)
