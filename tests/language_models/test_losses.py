"""The loss that never holds all logits, against that of the logits."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from implicit_models.equilibrium.gradients import Phantom
from implicit_models.equilibrium.jacobian import JacobianPenalty
from implicit_models.equilibrium.phase import Phase, bounded_phase
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import ResidualBelow
from implicit_models.kernels.dispatch import Kernels, kernels_for, reference_kernels, using
from implicit_models.language_models import losses
from implicit_models.language_models.forward import forward, forward_labelled
from implicit_models.language_models.losses import (
    IGNORED,
    LOSSES,
    aligned_loss,
    asked_of,
    center_loss,
    predicted_loss,
)
from tests.language_models.models import ALL, VOCABULARY, small_model

BATCH, LENGTH, WIDTH, CLASSES = 3, 7, 5, 23


@pytest.fixture(autouse=True)
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take four tokens at once, so that the last piece is a part of one."""
    monkeypatch.setattr(losses, "_TOKENS_AT_ONCE", 4)
    monkeypatch.setattr(losses, "_LOGITS_AT_ONCE", 1)


def draw(dtype: torch.dtype = torch.float64, more: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw hidden states, a head and labels, one of them ignored."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(BATCH, LENGTH, WIDTH, generator=generator, dtype=torch.float64)
    head = torch.randn(CLASSES + more, WIDTH, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (BATCH, LENGTH), generator=generator)
    labels[1, 2] = IGNORED
    return hidden.to(dtype).requires_grad_(), head.to(dtype).requires_grad_(), labels


def own_kernels() -> Kernels:
    return kernels_for(torch.device("cpu"))


def of_logits(hidden: Tensor, head: Tensor, labels: Tensor, num_items: Any, classes: int) -> Tensor:
    return aligned_loss((hidden @ head.t())[..., :classes], labels, num_items)


@pytest.mark.parametrize("more", [0, 2])
@pytest.mark.parametrize("num_items", [None, 9, torch.tensor(9)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_it_is_the_loss_of_the_logits(
    dtype: torch.dtype, tolerance: float, num_items: Any, more: int
) -> None:
    hidden, head, labels = draw(dtype, more)
    expected = of_logits(hidden, head, labels, num_items, CLASSES)
    slopes = torch.autograd.grad(3 * expected, (hidden, head))
    found = predicted_loss(hidden, head, labels, num_items, CLASSES)
    assert found.loss.dtype == dtype
    torch.testing.assert_close(found.loss, expected, rtol=tolerance, atol=tolerance)
    for one, other in zip(torch.autograd.grad(3 * found.loss, (hidden, head)), slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert torch.equal(found.tokens, (hidden @ head.t())[..., :CLASSES].argmax(-1))
    with torch.no_grad():
        again = predicted_loss(hidden, head, labels, num_items, CLASSES)
    torch.testing.assert_close(again.loss, expected.detach(), rtol=tolerance, atol=tolerance)
    assert torch.equal(again.tokens, found.tokens)


@pytest.mark.parametrize("kernels", [reference_kernels, own_kernels])
@pytest.mark.parametrize("more", [0, 2])
def test_rows_begin_on_cache_lines_and_their_ends_count_for_nothing(
    monkeypatch: pytest.MonkeyPatch, kernels: Callable[[], Kernels], more: int
) -> None:
    hidden, head, labels = draw(torch.float32, more)
    expected = of_logits(hidden, head, labels, None, CLASSES)
    slopes = torch.autograd.grad(expected, (hidden, head))
    seen, taken, empty = [], kernels(), Tensor.new_empty

    def noted(logits: Tensor, *arguments: Any) -> Any:
        seen.append(logits)
        return taken.cross_entropy(logits, *arguments)

    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **b: empty(*a, **b).fill_(torch.nan))
    with using(dataclasses.replace(taken, cross_entropy=noted)):
        found = predicted_loss(hidden, head, labels, None, CLASSES).loss
        gradients = torch.autograd.grad(found, (hidden, head))
    assert seen
    assert all(logits.stride(0) * logits.element_size() % 64 == 0 for logits in seen)
    torch.testing.assert_close([found, *gradients], [expected, *slopes], rtol=1e-5, atol=1e-6)


def test_the_reference_kernels_give_the_same() -> None:
    hidden, head, labels = draw(torch.float32)
    found = predicted_loss(hidden, head, labels).loss
    slopes = torch.autograd.grad(found, (hidden, head))
    with using(reference_kernels()):
        twin = predicted_loss(hidden, head, labels).loss
        expected = torch.autograd.grad(twin, (hidden, head))
    torch.testing.assert_close([found, *slopes], [twin, *expected], rtol=1e-5, atol=1e-7)


def test_gradients_are_finite_differences() -> None:
    hidden, head, labels = draw()
    slopes = torch.autograd.grad(predicted_loss(hidden, head, labels).loss, (hidden, head))
    step = 1e-6
    for tensor, slope in zip((hidden, head), slopes, strict=True):
        direction = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)).double()
        with torch.no_grad():
            losses_ = []
            for sign in (1, -1):
                tensor += sign * step * direction
                losses_.append(predicted_loss(hidden, head, labels).loss)
                tensor -= sign * step * direction
        measured = (losses_[0] - losses_[1]) / (2 * step)
        torch.testing.assert_close(measured, (slope * direction).sum(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("frozen", ["hidden", "head"])
def test_a_gradient_of_one_alone(frozen: str) -> None:
    hidden, head, labels = draw()
    moved = head if frozen == "hidden" else hidden
    (hidden if frozen == "hidden" else head).requires_grad_(False)
    expected = torch.autograd.grad(of_logits(hidden, head, labels, None, CLASSES), moved)
    found = torch.autograd.grad(predicted_loss(hidden, head, labels).loss, moved)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_in_bfloat16_it_is_as_near_to_the_truth_as_the_loss_of_the_logits() -> None:
    hidden, head, labels = draw()
    truth = torch.autograd.grad(of_logits(hidden, head, labels, None, CLASSES), (hidden, head))
    rounded = hidden, head = tuple(x.detach().bfloat16().requires_grad_() for x in (hidden, head))
    plain = torch.autograd.grad(of_logits(hidden, head, labels, None, CLASSES), rounded)
    found = torch.autograd.grad(predicted_loss(hidden, head, labels).loss, rounded)
    for one, other, true in zip(found, plain, truth, strict=True):
        assert one.dtype == torch.bfloat16
        allowed = (other - true).norm() + torch.finfo(torch.bfloat16).eps * true.norm()
        assert (one - true).norm() <= allowed


def test_of_no_tokens_at_all() -> None:
    hidden, head, labels = draw()
    found = predicted_loss(hidden[:0], head, labels[:0], 4)
    assert found.loss == 0
    assert found.tokens.shape == (0, LENGTH)


@pytest.mark.parametrize("wrong", [CLASSES, -1])
def test_a_label_of_no_class_is_refused(wrong: int) -> None:
    hidden, head, labels = draw()
    labels[0, 1] = wrong
    match = f"labels holds {wrong}; allowed are -100 and 0 to 22"
    with pytest.raises(IndexError, match=match):
        predicted_loss(hidden, head, labels)
    for loss in LOSSES.values():
        with pytest.raises(IndexError, match=match):
            loss(hidden @ head.T, labels, None)


def test_losses_of_logits_are_computed_under_transforms() -> None:
    """There no value can be looked at."""
    hidden, head, labels = draw()
    logits = hidden @ head.T
    together = torch.func.vmap(aligned_loss)(logits[None], labels[None])
    torch.testing.assert_close(together[0], aligned_loss(logits, labels))


def test_what_it_cannot_do_is_refused() -> None:
    hidden, head, labels = draw()
    loss = predicted_loss(hidden, head, labels).loss
    with pytest.raises(NotImplementedError, match="first derivatives alone"):
        torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(NotImplementedError, match="torch.func"):
        torch.func.grad(lambda head: predicted_loss(hidden, head, labels).loss)(head)
    loss = predicted_loss(hidden, head, labels).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="goes backward once"):
        loss.backward()


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind != "lstm"])
def test_a_model_with_targets(kind: str) -> None:
    """Loss, predictions and every gradient are those of the logits."""
    model = small_model(ALL[kind]).train()
    tokens, targets = torch.randint(VOCABULARY, (2, 2, 9), generator=torch.Generator())
    phase = bounded_phase(2) if kind.startswith("implicit") else None
    logits = forward(model, tokens, phase).logits
    expected = aligned_loss(logits, targets, 11)
    expected.backward()
    slopes = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    found = forward_labelled(model, tokens, targets, phase, 11)
    torch.testing.assert_close(found.loss, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(found.predictions(), logits.argmax(-1))
    found.loss.backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, slopes[name], rtol=1e-9, atol=1e-12)
    assert model(tokens, targets=targets, phase=phase).logits is None


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind.startswith("implicit")])
def test_what_stands_behind_the_last_label_is_padding(kind: str) -> None:
    """It changes nothing: not the search, the loss, the penalty, or a gradient."""
    model = small_model(ALL[kind]).train()
    draw = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(VOCABULARY, (2, 4, 9), generator=draw)
    for row, length in enumerate((9, 4, 0, 6)):
        targets[row, length:] = IGNORED
    targets[0, 2] = IGNORED  # a token that nothing asks for, before one of which is asked
    stopping, penalty = ResidualBelow(1e-6, 50), JacobianPenalty(0.2, seed=0)
    phase = Phase(Picard(0.8), stopping, Phantom(2, 0.8), penalty=penalty)
    found = []
    others = torch.where(targets == IGNORED, (tokens + 1) % VOCABULARY, tokens)
    others[0, 2] = tokens[0, 2]
    for behind in (tokens, others):
        model.zero_grad()
        output = forward_labelled(model, behind, targets, phase, 11, asked=asked_of(targets))
        (output.loss + output.penalty).backward()
        slopes = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
        found.append((output.loss, output.penalty, output.search.steps, slopes))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    steps = found[0][2].flatten().tolist()
    assert asked_of(torch.tensor([[IGNORED, 1], [0, 0]])) is None
    alone = forward_labelled(model, tokens[1:2, :4], targets[1:2, :4], phase, 11).search
    assert steps[1] == alone.steps.item() and steps[2] == 1


def test_targets_beside_labels_are_refused() -> None:
    model = small_model(ALL["explicit llama"])
    tokens = torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="either labels or targets"):
        model(tokens, labels=tokens, targets=tokens)


@pytest.mark.parametrize("kept", [2, torch.tensor([0])], ids=str)
def test_some_logits_beside_targets_are_refused(kept: Any) -> None:
    model = small_model(ALL["explicit llama"])
    tokens = torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="logits_to_keep is given beside targets"):
        model(tokens, targets=tokens, logits_to_keep=kept)


def test_without_any_label_the_loss_is_nothing() -> None:
    hidden, head, labels = draw()
    loss, _ = predicted_loss(hidden, head, torch.full_like(labels, IGNORED))
    loss.backward()
    for found in (loss, hidden.grad, head.grad):
        assert found is not None and not found.any()


def test_a_model_of_transformers_is_read_by_its_logits() -> None:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = LlamaForCausalLM(config)
    tokens, targets = torch.randint(VOCABULARY, (2, 2, 9), generator=torch.Generator())
    logits = model(tokens).logits
    found = forward_labelled(model, tokens, targets, None)
    assert found.loss == aligned_loss(logits, targets)
    assert torch.equal(found.predictions(), logits.argmax(-1))
    assert found.search is None


def center_loss_by_loops(hidden: Tensor, labels: Tensor) -> float:
    """Two sums over all tokens, each mean taken anew."""
    rows = [
        (row, int(label))
        for text, those in zip(hidden, labels, strict=True)
        for row, label in zip(text, those, strict=True)
        if label != IGNORED
    ]

    def mean_of(label: int | None) -> Tensor:
        return torch.stack([row for row, own in rows if label in (None, own)]).mean(0)

    within = sum(float((row - mean_of(label)).square().sum()) for row, label in rows)
    total = sum(float((row - mean_of(None)).square().sum()) for row, _ in rows)
    return (within / total) ** 0.5


@pytest.mark.parametrize("share_ignored", [0.0, 0.5])
def test_the_center_loss_is_the_root_of_the_share_of_variance_within_labels(
    share_ignored: float,
) -> None:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 7, 5, generator=draw, dtype=torch.float64).requires_grad_()
    labels = torch.randint(4, (3, 7), generator=draw)
    labels[torch.rand(3, 7, generator=draw) < share_ignored] = IGNORED
    found = center_loss(hidden, labels)
    assert found.item() == pytest.approx(center_loss_by_loops(hidden.detach(), labels))
    assert center_loss(3 * hidden + 1, labels).item() == pytest.approx(found.item())
    (gradient,) = torch.autograd.grad(found, hidden)
    assert (gradient[labels == IGNORED] == 0).all() and gradient.abs().sum() > 0
    assert torch.autograd.gradcheck(lambda each: center_loss(each, labels), hidden)


def test_the_center_loss_at_its_ends() -> None:
    labels = torch.tensor([[0, 1, 1], [2, 0, IGNORED]])
    places = torch.eye(3)[labels.clamp_min(0)]
    assert center_loss(places, labels).item() == pytest.approx(1e-4)
    apart = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    assert center_loss(apart, torch.zeros_like(labels)).item() == pytest.approx(1)
    assert center_loss(apart, torch.full_like(labels, IGNORED)).item() == 0
    assert center_loss(torch.ones(2, 3, 4), labels).item() == pytest.approx(1e-4)  # all are one
