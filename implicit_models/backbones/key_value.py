"""Keys and values of past tokens, of sequences of unequal length.

A `KeyValueCarry` is a value: whatever is done with it, it goes on meaning the same keys; and so is
a `KeyValueTrail`. Still nothing is copied token by token: carries that follow one another share
a buffer, in which each token has its slot. Only the newest of them may write behind its last token,
and only once no trail is left whose tokens stand there; any other copies first.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

# Slots beyond those needed in a buffer that grows: it is copied once in so many tokens, which costs
# each of them that fraction of what its attention reads.
SPARE_SLOTS = 64


def _nobody() -> None:
    return None


class _Buffer:
    """Slots for keys and values, (B, G, S, P), and who may write into them.

    Slots that nobody has written hold zeros: a masked key may be anything but not a number.

    Attributes
    ----------
    newest
        The carry that holds the most tokens, as long as somebody has it.
    written
        The trail whose tokens stand behind it, as long as somebody has it.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.newest: Callable[[], KeyValueCarry | None] = _nobody
        self.written: Callable[[], KeyValueTrail | None] = _nobody

    def __reduce__(self) -> tuple[type, tuple[Tensor, Tensor]]:
        return _Buffer, (self.keys, self.values)  # to a copy nobody may write

    def may_write(self, carry: "KeyValueCarry") -> bool:
        """Return whether the slots behind the carry's last token are free."""
        if self.newest() is not carry or self.written() is not None:
            return False
        if self.keys.is_inference() and not torch.is_inference_mode_enabled():
            return False
        return not self.keys.requires_grad  # a backward pass may still read it

    def has_room(self, num_slots: int) -> bool:
        """Return whether there are so many slots."""
        return num_slots <= self.keys.shape[2]

    def with_room(self, num_used: int, num_slots: int) -> tuple[Tensor, Tensor]:
        """Copy the keys and values of the used slots, with room for so many and some more."""
        room = (0, 0, 0, num_slots + SPARE_SLOTS - num_used)
        keys, values = (slots[:, :, :num_used] for slots in (self.keys, self.values))
        return F.pad(keys, room), F.pad(values, room)


@dataclass(frozen=True, eq=False)
class KeyValueCarry:
    """The keys and values of each sequence's tokens so far.

    Attributes
    ----------
    lengths
        Tokens of each sequence: it fills the first so many slots of its row.
    reach
        The largest of them, or more where sequences were left out since.
    is_uniform
        Whether it is known that all of them are equal.
    """

    buffer: _Buffer
    lengths: Int[Tensor, " B"]
    reach: int
    is_uniform: bool

    @classmethod
    def of(cls, keys: Float[Tensor, "B G S P"], values: Float[Tensor, "B G S P"]):
        """Hold the keys and values of sequences of equal length."""
        batch, _, length, _ = keys.shape
        lengths = torch.full((batch,), length, device=keys.device)
        return cls._newest(_Buffer(keys, values), lengths, length, True)

    @classmethod
    def _newest(cls, buffer: _Buffer, lengths: Tensor, reach: int, is_uniform: bool):
        carry = cls(buffer, lengths, reach, is_uniform)
        buffer.newest = weakref.ref(carry)
        return carry

    @property
    def keys(self) -> Float[Tensor, "B G reach P"]:
        """The keys; those of a sequence shorter than ``reach`` are followed by others' leavings."""
        return self.buffer.keys[:, :, : self.reach]

    @property
    def values(self) -> Float[Tensor, "B G reach P"]:
        """The values, like the keys."""
        return self.buffer.values[:, :, : self.reach]

    @property
    def by_sequence(self) -> Float[Tensor, "B G 0 P"]:
        """The keys of no slot: of the same shape for all carries of a model."""
        return self.buffer.keys[:, :, :0]

    def slots(self, length: int) -> Int[Tensor, "#B L"]:
        """Return the slots, which are the positions, of each sequence's next tokens."""
        tokens = torch.arange(length, device=self.lengths.device)
        return (self.reach + tokens)[None] if self.is_uniform else self.lengths[:, None] + tokens

    def select(self, rows: Tensor) -> "KeyValueCarry":
        """Return the carry of some of the batch's sequences."""
        buffer = _Buffer(self.keys[rows], self.values[rows])
        return self._newest(buffer, self.lengths[rows], self.reach, self.is_uniform)

    def with_tokens(
        self, keys: Float[Tensor, "B L G P"], values: Float[Tensor, "B L G P"]
    ) -> tuple[Float[Tensor, "B G S P"], Float[Tensor, "B G S P"], "KeyValueTrail"]:
        """Put more tokens behind those of the carry, which itself stays as it is.

        Returns all keys and all values, S = reach + L of them, and the trail.
        """
        length = keys.shape[1]
        end = self.reach + length
        keys, values = (new.to(self.buffer.keys.dtype) for new in (keys, values))  # of autocast
        if torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in (keys, values, self.buffer.keys)
        ):
            buffer = _Buffer(self._joined(self.keys, keys), self._joined(self.values, values))
        elif self.is_uniform and not self.reach:  # a whole prompt may come, and be all
            whole = (new.transpose(1, 2) for new in (keys, values))
            buffer = _Buffer(*(new.clone(memory_format=torch.contiguous_format) for new in whole))
        else:
            buffer = self.buffer
            if not buffer.may_write(self):
                buffer = _Buffer(*buffer.with_room(self.reach, end))
            elif not buffer.has_room(end):
                buffer.keys, buffer.values = buffer.with_room(self.reach, end)
            where = self._where(length)
            buffer.keys.transpose(1, 2)[where] = keys
            buffer.values.transpose(1, 2)[where] = values
        trail = KeyValueTrail(self, buffer, length)
        buffer.newest, buffer.written = weakref.ref(self), weakref.ref(trail)
        return buffer.keys[:, :, :end], buffer.values[:, :, :end], trail

    def _where(self, length: int) -> tuple[slice | Tensor, slice | Tensor]:
        if self.is_uniform:
            return slice(None), slice(self.reach, self.reach + length)
        rows = torch.arange(len(self.lengths), device=self.lengths.device)
        return rows[:, None], self.slots(length)

    def _joined(self, past: Tensor, new: Tensor) -> Tensor:
        """Put new tokens behind the past ones, differentiably."""
        if self.is_uniform:
            return torch.cat((past, new.transpose(1, 2)), dim=2)
        longer = F.pad(past, (0, 0, 0, new.shape[1])).transpose(1, 2)
        where = self._where(new.shape[1])
        return longer.index_put(where, new).transpose(1, 2)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class KeyValueTrail:
    """What an evaluation leaves behind, from which the carry after any of its tokens follows.

    Attributes
    ----------
    before
        The carry it went out from.
    buffer
        Holds that carry's tokens, and behind them the new ones.
    length
        Number of new tokens.
    """

    before: KeyValueCarry
    buffer: _Buffer
    length: int

    def carry(self, counts: Int[Tensor, " B"] | None = None) -> KeyValueCarry:
        """Return the carry after each sequence's first ``counts`` tokens; None means all."""
        before, buffer = self.before, self.buffer
        end = before.reach + self.length
        if buffer.newest() is not before:  # another carry was taken, which may write
            buffer = _Buffer(buffer.keys[:, :, :end].clone(), buffer.values[:, :, :end].clone())
        if counts is None:
            lengths, reach = before.lengths + self.length, end
        else:
            lengths = before.lengths + counts
            reach = int(lengths.max()) if len(lengths) else 0
        is_uniform = before.is_uniform and counts is None
        tensors = buffer.keys, buffer.values
        if not torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            shared = _Buffer(*(tensor.detach() for tensor in tensors))  # nobody may write into it
            return KeyValueCarry(shared, lengths, reach, is_uniform)
        if counts is None:
            buffer.written = _nobody  # what follows is written behind the tokens
        return KeyValueCarry._newest(buffer, lengths, reach, is_uniform)
