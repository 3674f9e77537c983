"""Sequences of unequal length in one batch."""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from implicit_models.equilibrium.solution import Solution


@dataclass(frozen=True)
class Alignment:
    """Moves each sequence to the left of its row, so that all padding stands on the right.

    There it cannot reach any token of a causal model.

    Attributes
    ----------
    lengths
        Tokens of each sequence.
    first
        Position of each sequence's first token.
    """

    lengths: Int[Tensor, " B"]
    first: Int[Tensor, " B"]

    @classmethod
    def of(cls, mask: Tensor, tokens: Int[Tensor, "B L"]) -> "Alignment":
        """Read an attention mask: true where a token is, one run of them in each row.

        Raises
        ------
        ValueError
            Where the mask has another shape than the tokens, or a hole.
        """
        if mask.shape != tokens.shape:
            raise ValueError(
                f"attention_mask has the shape {tuple(mask.shape)}; it must be that of the "
                f"tokens, {tuple(tokens.shape)}"
            )
        there = mask.to(device=tokens.device, dtype=torch.bool)
        lengths = there.sum(1)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        first = torch.where(there, positions, tokens.shape[1]).amin(1) if mask.numel() else lengths
        inside = (positions >= first[:, None]) & (positions < (first + lengths)[:, None])
        holes = (inside != there).any(1).nonzero()[:, 0].tolist()
        if holes:
            raise ValueError(
                f"attention_mask has holes in rows {holes}; padding may stand only before and "
                "after a sequence"
            )
        return cls(lengths, first % max(tokens.shape[1], 1))

    def to_the_left(self, rows: Tensor) -> Tensor:
        """Roll each row, (B, L, ...), so that its sequence begins at its start."""
        return self._roll(rows, self.first)

    def back(self, rows: Tensor) -> Tensor:
        """Undo `to_the_left`."""
        return self._roll(rows, -self.first)

    def search_back(self, search: Solution) -> Solution:
        """Undo `to_the_left` for everything in a search's outcome that is per token."""
        moved = {
            name: self.back(tensor) for name, tensor in vars(search).items() if tensor.dim() > 1
        }
        return dataclasses.replace(search, **moved)

    def _roll(self, rows: Tensor, by: Tensor) -> Tensor:
        length = rows.shape[1]
        if not length:
            return rows
        positions = (torch.arange(length, device=by.device) + by[:, None]) % length
        return rows[torch.arange(len(rows), device=by.device)[:, None], positions]
