"""Attention to a token and the few before it, in blocks, so that its work grows with the length.

Tokens of a block attend to the keys from which the first of them reaches back to that of the last:
of each block the same band. Only in the first block of a text there may be no token in the slots
before it; so its mask alone differs between sequences.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Shorter blocks multiply fewer pairs that are masked, and more tensors that are too small.
_SHORTEST_BLOCK = 64


class SlidingMasks(NamedTuple):
    """Which keys the tokens of a block attend to.

    Attributes
    ----------
    first
        Of each sequence's first block.
    others
        Of the others; None where there is one only.
    """

    first: Bool[Tensor, "#B 1 C S"]
    others: Bool[Tensor, "C S"] | None


def sliding_masks(length: int, window: int, filled: Int[Tensor, "#B"]) -> SlidingMasks:
    """Return the masks for so many tokens.

    Parameters
    ----------
    window
        A token attends to itself and to ``window - 1`` before it.
    filled
        How many of the ``window - 1`` slots before the tokens hold a token: the last ones.
    """
    num_blocks, block = _blocks(length, window)
    keys = torch.arange(block + window - 1, device=filled.device)
    ahead = keys - torch.arange(block, device=filled.device)[:, None]
    band = (ahead >= 0) & (ahead < window)
    first = band & (keys >= window - 1 - filled[:, None, None])
    return SlidingMasks(first[:, None], band if num_blocks > 1 else None)


def sliding_attention(
    queries: Float[Tensor, "B L H P"],
    keys: Float[Tensor, "B S G P"],
    values: Float[Tensor, "B S G P"],
    masks: SlidingMasks,
) -> Float[Tensor, "B L H P"]:
    """Attend to the last tokens; heads in groups share keys and values.

    Parameters
    ----------
    keys, values
        Of what stands in the ``window - 1`` slots before the tokens, and of the tokens: S is
        ``window - 1 + L``. All are rotated already.
    """
    length, (block, reach) = queries.shape[1], masks.first.shape[-2:]
    mixed = [_attend(queries[:, :block], keys[:, :reach], values[:, :reach], masks.first)]
    if masks.others is not None:
        batch, num_others = len(queries), -(-length // block) - 1
        missing = (num_others + 1) * block - length
        others = F.pad(queries[:, block:], (0, 0, 0, 0, 0, missing))
        others = others.view(batch * num_others, block, *queries.shape[2:])
        their_keys, their_values = (
            F.pad(tensor[:, block:], (0, 0, 0, 0, 0, missing))
            .unfold(1, reach, block)  # (B, others, G, P, S)
            .permute(0, 1, 4, 2, 3)
            .reshape(batch * num_others, reach, *tensor.shape[2:])
            for tensor in (keys, values)
        )
        found = _attend(others, their_keys, their_values, masks.others)
        mixed.append(found.reshape(batch, num_others * block, *queries.shape[2:]))
    return torch.cat(mixed, dim=1)[:, :length] if len(mixed) > 1 else mixed[0]


def num_pairs(length: int, window: int) -> int:
    """Return how many products of a query with a key that takes, masked ones included."""
    num_blocks, block = _blocks(length, window)
    return num_blocks * block * (block + window - 1)


def _blocks(length: int, window: int) -> tuple[int, int]:
    """Return the number of blocks and their length: at least the window's, for more than one."""
    block = -(-length // max(1, length // max(window, _SHORTEST_BLOCK)))
    return max(1, -(-length // max(1, block))), block


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    mixed = F.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        mask,
        enable_gqa=keys.shape[2] != queries.shape[2],
    )
    return mixed.transpose(1, 2)
