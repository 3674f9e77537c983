"""What training minimises. The names tell which token a label belongs to."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

IGNORED = -100  # the label of a token that no loss counts, as in PyTorch and transformers


def aligned_loss(
    logits: Float[Tensor, "B L V"],
    labels: Int[Tensor, "B L"],
    num_items: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Give the cross-entropy in nats where ``labels[t]`` belongs to ``inputs[:t + 1]``.

    The mean over all labels but `IGNORED`; with ``num_items`` their sum over that number (of
    the labels of all batches whose gradients are accumulated).
    """
    flat, targets = logits.flatten(0, 1), labels.flatten()
    if num_items is None:
        return F.cross_entropy(flat, targets, ignore_index=IGNORED)
    return F.cross_entropy(flat, targets, ignore_index=IGNORED, reduction="sum") / num_items


def next_token_loss(
    logits: Float[Tensor, "B L V"],
    labels: Int[Tensor, "B L"],
    num_items: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Give the cross-entropy in nats of each token given those before it; as `aligned_loss`.

    ``labels`` may be a copy of the inputs: they are shifted here.
    """
    return aligned_loss(logits[:, :-1], labels[:, 1:], num_items)


Loss = Callable[[Tensor, Tensor, Tensor | int | None], Tensor]
LOSSES: dict[str, Loss] = {"next_token": next_token_loss, "aligned": aligned_loss}
