"""The carry of a model as transformers' ``generate`` wants it."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import Cache

from implicit_models.backbones.stack import StackCarry


class CarryCache(Cache):
    """Holds what the model needs of the tokens so far, and puts the newest in place of the old.

    A shell around an immutable carry: of Mamba2 each block's state and convolution tail, of Llama
    keys and values, of a fixed size where it attends to a window. It takes part in beam search; it
    cannot be cut back.

    Attributes
    ----------
    carry
        None before the first token.
    is_detached
        Whether the carry that takes its place is computed without gradient, as truncated
        backpropagation through time has it.
    """

    # Tokens read of each sequence, without padding; None where that is not known, as in caches
    # that earlier versions have pickled.
    _num_read: Tensor | int | None = None

    def __init__(
        self, carry: StackCarry | None = None, num_tokens: int = 0, *, is_detached: bool = False
    ) -> None:
        super().__init__(layers=[])
        self.carry, self.is_detached = carry, is_detached
        self._num_tokens = num_tokens
        self._num_read = None if num_tokens else 0

    def advance(
        self, carry: StackCarry, num_tokens: int, lengths: Int[Tensor, " B"] | None = None
    ) -> "CarryCache":
        """Take the carry after ``num_tokens`` more tokens, padding included.

        ``lengths`` are each sequence's without it; None where there is none.
        """
        self.carry = carry
        self._num_tokens += num_tokens
        if self._num_read is not None:
            self._num_read = self._num_read + (num_tokens if lengths is None else lengths)
        return self

    def copy(self) -> "CarryCache":
        """Return another cache of the same tokens; going on with one leaves the other as it is."""
        found = CarryCache(self.carry, self._num_tokens, is_detached=self.is_detached)
        found._num_read = self._num_read
        return found

    def check_past(self, mask: Tensor | None, num_tokens: int) -> None:
        """Check that a mask of the tokens so far and as many more has as many as have been read.

        Numbers of each row are compared. Nothing is after `resumed`, where they are not known.

        Raises
        ------
        ValueError
            Where a row of it has more or fewer tokens than the cache has read.
        """
        before = self._num_tokens
        if mask is None or self._num_read is None or not before:
            return
        if mask.dim() != 2 or mask.shape[1] != before + num_tokens:
            return
        found = mask[:, :before].to(torch.bool).sum(1)
        wrong = found != self._num_read
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0, 0])
            read = self._num_read if isinstance(self._num_read, int) else int(self._num_read[row])
            raise ValueError(
                f"attention_mask has {int(found[row])} of the {before} earlier tokens of row "
                f"{row}, and the cache has read {read}; give the mask that they were read with, "
                "attention_mask=torch.ones_like(input_ids) where pads were read as text (generate "
                "reads those it writes so), or that of the new tokens alone"
            )

    def tensors(self) -> dict[str, Tensor]:
        """Return the carry's tensors by name, each with a row for each sequence.

        There are none before the first token, nor of a carry that grows with every token.
        """
        blocks = () if self.carry is None else self.carry.blocks
        named = ((i, name, tensor) for i, b in enumerate(blocks) for name, tensor in _fields(b))
        return {f"{i}.{name}": tensor for i, name, tensor in named}

    def resumed(self, tensors: Mapping[str, Tensor]) -> "CarryCache":
        """Return a detached cache of such a carry, whose `tensors` these are.

        Raises
        ------
        ValueError
            Where there are no such tensors.
        """
        if not self.tensors():
            raise ValueError(
                "a cache that is empty, or grows with every token, has no tensors and cannot be "
                "resumed; go on with a copy() of it"
            )
        assert self.carry is not None
        blocks = tuple(
            type(block)(**{name: tensors[f"{i}.{name}"] for name, _ in _fields(block)})
            for i, block in enumerate(self.carry.blocks)
        )
        return CarryCache(StackCarry(blocks), self._num_tokens, is_detached=True)

    def arguments(self, num_tokens: int) -> dict[str, Any]:
        """Return what a forward pass over so many tokens behind it is told."""
        return {"use_cache": True, "cache": self}

    def following(self, output: Any) -> "CarryCache":
        """Return the cache after these tokens, from what the forward pass has returned."""
        return output.cache

    def __len__(self) -> int:
        return 0 if self.carry is None else len(self.carry.blocks)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens so far, padding included."""
        return self._num_tokens

    @property
    def num_sequences(self) -> int:
        """Number of sequences; 0 before the first token."""
        return 0 if self.carry is None else len(self.carry.blocks[0].by_sequence)

    @property
    def is_compileable(self) -> bool:
        """A search has no fixed number of steps to compile."""
        return False

    @property
    def is_linear(self) -> list[bool]:
        """Whether ``generate`` is to read all that it is given: no, what the cache lacks alone."""
        return [False]

    @property
    def is_initialized(self) -> bool:
        """Whether there has been a token."""
        return self.carry is not None

    @property
    def is_croppable(self) -> bool:
        """A state cannot be taken back."""
        return False

    def reset(self) -> None:
        """Forget all tokens."""
        self.carry, self._num_tokens, self._num_read = None, 0, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the sequences, so that each beam continues the one it was chosen from."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some of the batch's sequences."""
        if self.carry is not None:
            self.carry = self.carry.select(indices)
        if isinstance(self._num_read, Tensor):
            self._num_read = self._num_read[indices.to(self._num_read.device)]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence."""
        if self.carry is not None:
            rows = torch.arange(self.num_sequences, device=self.carry.blocks[0].by_sequence.device)
            self.batch_select_indices(rows.repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Refuse: the carry of fewer tokens is not known any more."""
        raise ValueError("this cache cannot be cut back; keep a copy() of the earlier one")


def _fields(block: Any) -> Iterable[tuple[str, Tensor]]:
    """Return the tensors of a block's carry of a fixed size, which is a NamedTuple of them."""
    return block._asdict().items() if hasattr(block, "_asdict") else ()


def checked_cache(cache: Any, num_sequences: int) -> CarryCache | None:
    """Return the cache; raise a ValueError where it is another kind of cache, or of other texts."""
    if cache is None:
        return None
    if not isinstance(cache, CarryCache):
        raise ValueError(
            f"cache is a {type(cache).__name__}; these models take a CarryCache, as "
            "their outputs and generate() have it"
        )
    if cache.carry is not None and cache.num_sequences != num_sequences:
        raise ValueError(
            f"cache holds {cache.num_sequences} sequences; the input has {num_sequences}"
        )
    return cache
