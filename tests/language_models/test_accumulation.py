"""Losses of micro-batches and of replicas, as transformers' Trainer puts them together."""

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import scatter_gather

from implicit_models.equilibrium.jacobian import JacobianPenalty
from implicit_models.equilibrium.phase import free_phase
from implicit_models.language_models.losses import IGNORED, LOSSES
from tests.language_models.kinds import IMPLICIT, KINDS, model_of, tokens

COUNTED = {"next_token": (5, 6), "aligned": (6, 8)}


@pytest.mark.parametrize("alignment", COUNTED)
@pytest.mark.parametrize("kind", IMPLICIT)
def test_micro_batches_share_one_penalty(kind: str, alignment: str) -> None:
    model, text = model_of(kind, label_alignment=alignment), tokens(4, 4)
    labels = text.clone()
    labels[1, :2] = IGNORED
    phase = free_phase(1e-6, 100, 2, 1.0, penalty=JacobianPenalty(0.3, seed=0))
    for counted, rows in zip(COUNTED[alignment], (slice(2), slice(2, 4)), strict=True):
        asked = {"input_ids": text[rows], "labels": labels[rows], "phase": phase}
        found = model(**asked, num_items_in_batch=torch.tensor(14))
        assert found.penalty > 1e-3
        own = LOSSES[alignment](found.logits, labels[rows], 14)
        torch.testing.assert_close(found.loss, own + found.penalty * counted / 14)
        alone = model(**asked, num_items_in_batch=counted).loss
        torch.testing.assert_close(alone, model(**asked).loss)


def replicas_of(model: nn.Module, number: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Make what `nn.DataParallel` makes on as many GPUs, on the CPU."""
    module = sys.modules["torch.nn.parallel.replicate"]
    monkeypatch.setattr(module, "_get_device_index", lambda device, _: device)
    monkeypatch.setattr(
        module,
        "_broadcast_coalesced_reshape",
        lambda tensors, devices, detach=False: [
            [each.clone() for each in tensors] for _ in devices
        ],
    )
    return module.replicate(model, range(number))


class Joined:
    """In place of `torch.nn.parallel._functions.Gather`, which knows GPUs alone."""

    @staticmethod
    def apply(device: Any, dim: int, *tensors: Tensor) -> Tensor:
        return torch.cat([each[None] if each.dim() == 0 else each for each in tensors], dim)


@pytest.mark.parametrize("differentiable", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_data_parallel_replicas_are_gathered(
    kind: str, differentiable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, text = model_of(kind), tokens(4, 5)
    monkeypatch.setattr(scatter_gather, "Gather", Joined)
    with torch.set_grad_enabled(differentiable):
        expected = model(text, labels=text)
        replicas = replicas_of(model, 2, monkeypatch)
        found = [
            replica(text[rows], labels=text[rows])
            for replica, rows in zip(replicas, (slice(2), slice(2, 4)), strict=True)
        ]
    # As dicts: the tests' checks of types do not let outputs be made of a generator.
    gathered = scatter_gather.gather([dict(each) for each in found], 0)
    torch.testing.assert_close(gathered["logits"], expected.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gathered["loss"].mean(), expected.loss, rtol=1e-4, atol=1e-4)
    if differentiable:
        gathered["loss"].mean().backward()
        assert all(weight.grad is not None for weight in model.parameters())
