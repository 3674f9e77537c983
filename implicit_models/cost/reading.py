"""FLOPs of reading a batch without gradient: from its shapes, and from what its search did."""

import numpy as np
from jaxtyping import Int, Integer

from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.families.costs import ModelFlops, Past, StackFlops


def reading_flops(
    model: ModelFlops,
    *,
    num_sequences: int,
    length: int,
    past: Past | None = None,
    search: Solution | None = None,
    window: int | None = None,
    num_tokens: Integer[np.ndarray, " B"] | None = None,
) -> float:
    """Return the FLOPs of a forward pass without gradient, logits left out.

    Everything that is computed counts, padding too. What a GPU computes of sequences that have
    ended, until it looks at them (`find_fixed_point`), is left out.

    Parameters
    ----------
    num_sequences, length
        Of the batch as it is read, with its padding.
    past
        What the carry held that was read; the carry after the tokens is then taken too. None where
        there was no carry.
    search
        The batch's; None for a model that seeks no fixed point.
    window
        Tokens that were searched together; None for whole sequences.
    num_tokens
        Of each sequence without padding; None where there is none.
    """
    stack = model.stack
    each = stack.evaluation(length, before=None if past is None else past.reach).total
    flops = num_sequences * (each + length * model.injection)
    if past is not None:
        flops += stack.carry(num_sequences * length)
    if search is None:
        return flops
    if window is None:
        return flops + float(search.steps.sum()) * each
    if num_tokens is None:
        num_tokens = np.full(num_sequences, length)
    return flops + _window_flops(
        stack, search, num_tokens, min(window, length), past or Past.empty(num_sequences)
    )


def _window_flops(
    stack: StackFlops,
    search: Solution,
    num_tokens: Integer[np.ndarray, " B"],
    width: int,
    past: Past,
) -> float:
    """Return the FLOPs of a search through a window, which may hang over a text's end.

    Whenever a token of any sequence leaves its window, the carries of all that are left are taken.
    """
    depth, result = search.depth.cpu().numpy(), search.result.cpu().numpy()
    left_at = _left_at(search.steps.cpu().numpy(), width)
    inside = np.arange(left_at.shape[1]) < num_tokens[:, None]
    slides = np.unique(left_at[inside])
    if not slides.size:
        return 0.0
    began = np.concatenate(([0], slides[:-1]))
    at_work = depth[:, None] > began
    committed = inside & (result != Result.NON_FINITE)
    num_behind = [
        np.searchsorted(np.sort(steps[mask]), began, side="right")
        for steps, mask in zip(left_at, committed, strict=True)
    ]
    lengths = past.lengths[:, None] + np.stack(num_behind)
    # Those that end with a slide are still in the carry that is taken then.
    were_at_work = np.concatenate((at_work[:, :1], at_work[:, :-1]), axis=1)
    reach = np.where(were_at_work, lengths, 0).max(axis=0)
    reach[0] = past.reach
    flops = 0.0
    for steps, rows, before in zip(slides - began, at_work.sum(axis=0), reach, strict=True):
        flops += float(steps * rows) * stack.evaluation(width, before=int(before)).total
    num_carries = int(at_work[:, :-1].sum())  # none is taken as the last sequences end
    return flops + stack.carry(num_carries * width)


def _left_at(steps: Int[np.ndarray, "B L"], width: int) -> Int[np.ndarray, "B L"]:
    """Return the evaluation at which each token left a window, entering as others left."""
    batch, length = steps.shape
    padded = np.pad(steps, ((0, 0), (0, -length % width)))
    by_place = padded.reshape(batch, -1, width).cumsum(axis=1)
    return by_place.reshape(batch, -1)[:, :length]
