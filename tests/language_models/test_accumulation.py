"""Losses of micro-batches and of replicas, as transformers' Trainer puts them together."""

import pytest
import torch

from implicit_models.equilibrium.jacobian import JacobianPenalty
from implicit_models.equilibrium.phase import free_phase
from implicit_models.language_models.losses import IGNORED, LOSSES
from tests.language_models.kinds import IMPLICIT, model_of, tokens

COUNTED = {"next_token": (5, 6), "aligned": (6, 8)}


@pytest.mark.parametrize("alignment", COUNTED)
@pytest.mark.parametrize("kind", IMPLICIT)
def test_micro_batches_share_one_penalty(kind: str, alignment: str) -> None:
    model, text = model_of(kind, label_alignment=alignment), tokens(4, 4)
    labels = text.clone()
    labels[1, :2] = IGNORED
    phase = free_phase(1e-6, 100, 2, 1.0, penalty=JacobianPenalty(0.3))
    for counted, rows in zip(COUNTED[alignment], (slice(2), slice(2, 4)), strict=True):
        asked = {"input_ids": text[rows], "labels": labels[rows], "phase": phase}
        found = model(**asked, num_items_in_batch=torch.tensor(14))
        assert found.penalty > 1e-3
        own = LOSSES[alignment](found.logits, labels[rows], 14)
        torch.testing.assert_close(found.loss, own + found.penalty * counted / 14)
        alone = model(**asked, num_items_in_batch=counted).loss
        torch.testing.assert_close(alone, model(**asked).loss)
