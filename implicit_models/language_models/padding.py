"""Sequences of unequal length in one batch."""

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
    order
        Positions of each row: first those of the tokens, then those of the padding.
    """

    lengths: Int[Tensor, " B"]
    order: Int[Tensor, "B L"]

    @classmethod
    def where_padded(
        cls, mask: Tensor | None, size: tuple[int, int], before: int
    ) -> "Alignment | None":
        """Return the alignment of (B, L) tokens by their mask; None where there is no padding.

        The mask may be of the ``before`` tokens before them too.
        """
        if mask is None:
            return None
        reaches_back = mask.dim() == 2 and mask.shape[1] == before + size[1]
        recent = mask[:, before:] if reaches_back else mask
        if recent.shape == size and bool(recent.all()):
            return None
        return cls.of(recent, size)

    @classmethod
    def of(cls, mask: Tensor, size: tuple[int, int]) -> "Alignment":
        """Read an attention mask of (B, L) tokens: true or 1 where one is, wherever that may be.

        Raises
        ------
        ValueError
            Where the mask has another shape.
        """
        if mask.shape != size:
            raise ValueError(
                f"attention_mask has the shape {tuple(mask.shape)}; it must be that of the "
                f"tokens, {size}"
            )
        there = mask.to(torch.bool)
        return cls(there.sum(1), there.logical_not().to(torch.uint8).argsort(dim=1, stable=True))

    def to_the_left(self, rows: Tensor) -> Tensor:
        """Order each row, (B, L, ...), so that its sequence stands at its start."""
        return self._ordered(rows, self.order)

    def back(self, rows: Tensor) -> Tensor:
        """Undo `to_the_left`."""
        return self._ordered(rows, self.order.argsort(dim=1))

    def search_back(self, search: Solution) -> Solution:
        """Undo `to_the_left` for everything in a search's outcome that is per token."""
        return search.reordered(self.order.argsort(dim=1))

    @staticmethod
    def _ordered(rows: Tensor, order: Tensor) -> Tensor:
        return rows[torch.arange(len(rows), device=rows.device)[:, None], order]
