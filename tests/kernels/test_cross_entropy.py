"""The cross-entropy kernels against torch's own: losses, predictions, gradients in their place."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from implicit_models.kernels.dispatch import Kernels, native_kernels, reference_kernels
from tests.kernels.twins import draw, poison

CLASSES = (1, 2, 15, 16, 17, 1023, 1025, 5000)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch)


@pytest.fixture(params=["reference", "native"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "reference":
        return reference_kernels()
    try:
        return native_kernels()
    except OSError as missing:
        pytest.skip(f"the kernels in C do not run here: {missing}")


def expected(logits: Tensor, labels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return torch's losses and their gradient, in float64."""
    leaf = logits.double().requires_grad_()
    losses = F.cross_entropy(leaf, labels, reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum() * scale, leaf)
    return losses.detach(), gradient


def draw_rows(classes: int, more: int = 0) -> tuple[Tensor, Tensor]:
    logits = 3 * draw(7, classes + more).cpu()
    labels = torch.randint(classes, (7,), generator=torch.Generator().manual_seed(0))
    labels[2] = -100
    return logits, labels


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize("classes", CLASSES)
def test_losses_predictions_and_gradients(kernels: Kernels, classes: int, more: int) -> None:
    logits, labels = draw_rows(classes, more)
    losses, gradient = expected(logits[:, :classes], labels, 0.25)
    likeliest = logits[:, :classes].argmax(-1)
    found, predictions = kernels.cross_entropy(logits, labels, classes, torch.tensor(0.25))
    torch.testing.assert_close(found, losses.float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits[:, :classes], gradient.float(), rtol=1e-5, atol=1e-7)
    assert torch.equal(predictions, likeliest)
    assert not logits[:, classes:].any()
    assert not logits[2].any()
    assert found[2] == 0


@pytest.mark.parametrize("classes", [17, 1025])
def test_without_a_gradient(kernels: Kernels, classes: int) -> None:
    logits, labels = draw_rows(classes)
    losses, _ = expected(logits, labels, 1.0)
    found, predictions = kernels.cross_entropy(logits.clone(), labels, classes, None)
    torch.testing.assert_close(found, losses.float(), rtol=1e-6, atol=1e-6)
    assert torch.equal(predictions, logits.argmax(-1))


def test_large_logits_do_not_overflow(kernels: Kernels) -> None:
    logits, labels = draw_rows(40)
    logits = logits * 1e4
    losses, gradient = expected(logits, labels, 1.0)
    found, _ = kernels.cross_entropy(logits, labels, 40, torch.tensor(1.0))
    torch.testing.assert_close(found, losses.float(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits, gradient.float(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_not_finite_shows(kernels: Kernels, broken: float) -> None:
    logits, labels = draw_rows(40)
    logits[4, 35] = broken
    found, _ = kernels.cross_entropy(logits, labels, 40, torch.tensor(1.0))
    assert found.isfinite().tolist() == [row != 4 for row in range(7)]
    assert logits.isfinite().all(-1).tolist() == [row != 4 for row in range(7)]
