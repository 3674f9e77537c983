"""Noise on embeddings: how large it is, and that the model reads the noisy ones."""

import pytest
import torch

from implicit_models.equilibrium.phase import free_phase
from implicit_models.language_models.forward import forward_labelled
from implicit_models.language_models.regularisation import Regularisation
from tests.language_models.models import LSTM, small_model, tokens
from tests.language_models.test_modelling import IMPLICIT_ONES

NOISE = Regularisation(embedding_noise=0.3)


def _noisy(embedded: torch.Tensor, regularisation: Regularisation = NOISE) -> torch.Tensor:
    torch.manual_seed(7)
    return regularisation.noisy(embedded)


def test_noise_is_measured_in_the_size_of_each_embedding():
    sizes = torch.tensor([0.01, 1.0, 50.0], dtype=torch.float64)
    embedded = torch.randn(2000, 3, 16, dtype=torch.float64) * sizes[:, None]
    added = (_noisy(embedded) - embedded) / embedded.square().mean(-1, keepdim=True).sqrt()
    assert added.mean((0, 2)).abs().max() < 0.01
    assert added.std((0, 2)) == pytest.approx([0.3] * 3, rel=0.02)
    assert added.flatten(1).T.corrcoef().fill_diagonal_(0).abs().max() < 0.12
    assert torch.allclose(_noisy(4 * embedded), 4 * _noisy(embedded))


def test_without_noise_nothing_is_drawn():
    embedded = torch.randn(2, 3, 4)
    state = torch.get_rng_state()
    assert Regularisation(center_weight=1.0).noisy(embedded) is embedded
    assert torch.equal(torch.get_rng_state(), state)


@IMPLICIT_ONES
def test_a_model_reads_the_noisy_embeddings(parameters):
    model, text = small_model(parameters), tokens(3, 7)
    phase = free_phase(1e-10, 500, 4, 0.8)
    expected = model(
        inputs_embeds=_noisy(model.model.embed_tokens(text)), phase=phase, targets=text
    )
    torch.manual_seed(7)
    found = model(text, phase=phase, targets=text, regularisation=NOISE)
    assert found.loss.item() == expected.loss.item()
    assert found.center is None
    assert found.loss.item() != model(text, phase=phase, targets=text).loss.item()


def test_a_model_that_is_not_ours_refuses_it():
    with pytest.raises(ValueError, match="which a regularisation is for"):
        forward_labelled(small_model(LSTM), tokens(2, 5), tokens(2, 5), None, regularisation=NOISE)
