"""What training minimises. The names tell which token a label belongs to."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from implicit_models.kernels.dispatch import kernels_for
from implicit_models.kernels.double_backward import backward_needs_twin, needs_gradient, transformed
from implicit_models.kernels.reference import accumulation_dtype
from implicit_models.language_models.padding import Alignment

IGNORED = -100  # the label of a token that no loss counts, as in PyTorch and transformers

_LEAST_SHARE = 1e-8  # of variance within labels

# Tokens whose logits are held at once: with fewer the products become slow, more take memory. A
# small vocabulary takes as many more as come to the number of logits below.
_TOKENS_AT_ONCE = 512
_LOGITS_AT_ONCE = 2**22
# Rows of logits begin at multiples of this. The paper's vocabulary, 50,277, is odd: its rows, one
# right behind the other, would lie across cache lines, and MKL writes such a product 1.7 times as
# slowly.
_ROW_MULTIPLE = 64


def asked_of(labels: Int[Tensor, "B L"]) -> Bool[Tensor, "B L"] | None:
    """Return which tokens are their sequence's last with a label, or before it; None where all are.

    The labels lie in the host's memory: nothing waits for a device.
    """
    labelled = labels != IGNORED
    if bool(labelled[:, -1:].all()):
        return None
    return _until_last(labelled)


def _until_last(there: Bool[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
    """Return which places of a row are the last one that is there, or before it."""
    return there.flip(1).cummax(1).values.flip(1)


def aligned_loss(
    logits: Float[Tensor, "B L V"],
    labels: Int[Tensor, "B L"],
    num_items: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Return the cross-entropy in nats where ``labels[t]`` belongs to ``inputs[:t + 1]``.

    The mean over all labels but `IGNORED`; with ``num_items`` their sum over that number (of
    the labels of all batches whose gradients are accumulated). In float32 at least.

    Raises
    ------
    IndexError
        Where a label is no token of the vocabulary.
    """
    flat, targets = logits.flatten(0, 1), labels.flatten()
    _check_labels(targets, flat.shape[-1])
    flat = flat.to(accumulation_dtype(flat.dtype))
    if num_items is None:
        return F.cross_entropy(flat, targets, ignore_index=IGNORED)
    return F.cross_entropy(flat, targets, ignore_index=IGNORED, reduction="sum") / num_items


def next_token_loss(
    logits: Float[Tensor, "B L V"],
    labels: Int[Tensor, "B L"],
    num_items: Tensor | int | None = None,
) -> Float[Tensor, ""]:
    """Return the cross-entropy in nats of each token given those before it; as `aligned_loss`.

    ``labels`` may be a copy of the inputs: they are shifted here.
    """
    return aligned_loss(logits[:, :-1], labels[:, 1:], num_items)


def among_tokens(
    labels: Int[Tensor, "B L"], mask: Shaped[Tensor, "B any"] | None, alignment: str
) -> tuple[Int[Tensor, "B L"], str]:
    """Return labels that ask for no token at padding before it, and their alignment.

    A model has read a whole row where it comes to the padding in it, wherever that stands
    (`Alignment`), and would tell the token behind it. Such padding is nobody's next token either.

    Parameters
    ----------
    labels, alignment
        As a model has them: ``next_token`` or ``aligned``.
    mask
        Of these tokens, and perhaps of those before them: true or 1 where one is.
    """
    if mask is None or alignment != "next_token":
        return labels, alignment
    there = mask[:, mask.shape[1] - labels.shape[1] :].to(torch.bool)
    gaps = _until_last(there) & ~there
    if not bool(gaps.any()):
        return labels, alignment
    order = Alignment.of(~gaps, (labels.shape[0], labels.shape[1]))
    ordered = order.to_the_left(labels.masked_fill(gaps, IGNORED))
    following = order.back(F.pad(ordered[:, 1:], (0, 1), value=IGNORED))
    return following.masked_fill(gaps, IGNORED), "aligned"


def count_labels(labels: Int[Tensor, "B L"], alignment: str) -> Int[Tensor, ""]:
    """Count the labels that the loss of an alignment, a name in `LOSSES`, counts."""
    shifted = labels[:, 1:] if alignment == "next_token" else labels
    return (shifted != IGNORED).sum()


def center_loss(hidden: Float[Tensor, "B L D"], labels: Int[Tensor, "B L"]) -> Float[Tensor, ""]:
    """Return how far hidden states of one label are from each other, over how far all are.

    The root of the share of the states' variance that is within labels: 1 where labels tell nothing
    of the states, 0 where they tell all. That is the distance to class centers of Wen et al. 2016,
    made independent of the states' scale as in Papyan et al. 2020 (NC1), and a root, so that its
    pull does not weaken as states come together. Where a label is a state, as in word problems,
    errors of the state that do not change the label yet are trained away.

    Parameters
    ----------
    labels
        `IGNORED` where a token does not count. 0 is returned where none does, and otherwise no less
        than 1e-4, where the pull ends.
    """
    counted = labels != IGNORED
    rows, classes = hidden[counted], labels[counted]
    rows = rows.to(accumulation_dtype(rows.dtype))
    if not len(rows):
        return rows.sum()
    present, places = classes.unique(return_inverse=True)
    sums = rows.new_zeros(len(present), rows.shape[1]).index_add(0, places, rows)
    centers = sums / torch.bincount(places, minlength=len(present))[:, None]
    within = (rows - centers[places]).square().sum()
    total = (rows - rows.mean(0)).square().sum()
    share = within / total.clamp_min(torch.finfo(total.dtype).tiny)
    return share.clamp_min(_LEAST_SHARE).sqrt()


class Predicted(NamedTuple):
    """What a language model's head makes of hidden states, without their logits.

    Attributes
    ----------
    loss
        As `aligned_loss`.
    tokens
        The likeliest token at each place.
    """

    loss: Float[Tensor, ""]
    tokens: Int[Tensor, "B L"]


def predicted_loss(
    hidden: Float[Tensor, "B L D"],
    head: Float[Tensor, "V D"],
    labels: Int[Tensor, "B L"],
    num_items: Tensor | int | None = None,
    num_classes: int | None = None,
) -> Predicted:
    """Return the `aligned_loss` of the logits ``hidden @ head.T``, holding a few at a time.

    Its gradients are computed along with it, as the logits pass by, and added up in float32
    at least. It goes backward once, and has no second derivative. Without any label it is 0.

    Parameters
    ----------
    num_items
        As in `aligned_loss`.
    num_classes
        The size of the vocabulary, where the head has more rows.

    Raises
    ------
    IndexError
        Where a label is no token of the vocabulary.
    NotImplementedError
        Where a second derivative is asked for, or a transform of torch.func is at work.
    """
    classes = len(head) if num_classes is None else num_classes
    rows, targets = hidden.flatten(0, 1), labels.flatten()
    _check_labels(targets, classes)
    if transformed():
        raise NotImplementedError(f"{_NO_TWIN}; a transform of torch.func needs it")
    count = (targets != IGNORED).sum().clamp_min(1) if num_items is None else num_items
    precise = accumulation_dtype(rows.dtype)
    scale = torch.as_tensor(count, device=rows.device).to(precise).reciprocal()
    head = head.to(rows.dtype)
    if needs_gradient(rows, head):
        loss, tokens = _PredictedLoss.apply(rows, head, targets, scale, classes)
    else:
        loss, tokens, _, _ = _by_pieces(rows, head, targets, scale, classes, (False, False))
    return Predicted(loss, tokens.view(labels.shape))


_NO_TWIN = "a loss without logits has first derivatives alone; take aligned_loss of the logits"


class _PredictedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, head, targets, scale, classes):
        wanted = ctx.needs_input_grad[:2]
        loss, tokens, *gradients = _by_pieces(rows, head, targets, scale, classes, wanted)
        ctx.gradients, ctx.dtypes = gradients, (rows.dtype, head.dtype)
        ctx.mark_non_differentiable(tokens)
        return loss, tokens

    @staticmethod
    def backward(ctx, outgoing, _):
        if backward_needs_twin(outgoing):
            raise NotImplementedError(_NO_TWIN)
        if ctx.gradients is None:
            raise RuntimeError(
                "a loss without logits goes backward once; take aligned_loss of the logits"
            )
        # Handed over, not kept: that of the head is as large as the head.
        gradients, ctx.gradients = ctx.gradients, None
        found = (
            None if gradient is None else gradient.mul_(outgoing).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return *found, None, None, None


def _by_pieces(
    rows: Tensor, head: Tensor, targets: Tensor, scale: Tensor, classes: int, wanted: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the loss, the likeliest tokens, and the gradients of rows and head where wanted."""
    cross_entropy = kernels_for(rows.device).cross_entropy
    row = -(-len(head) // _ROW_MULTIPLE) * _ROW_MULTIPLE
    at_once = max(_TOKENS_AT_ONCE, _LOGITS_AT_ONCE // max(row, 1))
    precise = scale.dtype
    of_rows = torch.empty_like(rows, dtype=precise) if wanted[0] else None
    of_head = torch.zeros_like(head, dtype=precise) if wanted[1] else None
    losses, tokens = rows.new_empty(len(rows), dtype=precise), torch.empty_like(targets)
    buffer = rows.new_empty(min(at_once, len(rows)), row)
    for first in range(0, len(rows), at_once):
        piece = slice(first, first + at_once)
        whole_rows = buffer[: len(rows[piece])]
        torch.mm(rows[piece], head.t(), out=whole_rows[:, : len(head)])
        whole_rows = whole_rows.to(precise)
        losses[piece], tokens[piece] = cross_entropy(
            whole_rows, targets[piece], classes, scale if any(wanted) else None
        )
        logits = whole_rows[:, : len(head)].to(rows.dtype)
        if of_rows is not None:
            of_rows[piece] = logits @ head
        if of_head is not None and rows.dtype == precise:
            of_head.addmm_(logits.t(), rows[piece])
        elif of_head is not None:
            of_head += logits.t() @ rows[piece]
    return losses.sum() * scale, tokens, of_rows, of_head


def _check_labels(targets: Tensor, classes: int) -> None:
    if targets.device.type != "cpu":  # a GPU would have to be waited for
        return
    if torch.compiler.is_compiling() or transformed():  # which look at no values
        return
    wrong = (targets != IGNORED) & ((targets < 0) | (targets >= classes))
    if bool(wrong.any()):
        raise IndexError(
            f"labels holds {int(targets[wrong][0])}; allowed are {IGNORED} and 0 to {classes - 1}"
        )


Loss = Callable[[Tensor, Tensor, Tensor | int | None], Tensor]
LOSSES: dict[str, Loss] = {"next_token": next_token_loss, "aligned": aligned_loss}
