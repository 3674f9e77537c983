"""Lyapunov exponents against products of Jacobians that autograd takes."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from implicit_models.equilibrium.phase import SearchSettings
from implicit_models.families.family import initial_memory
from implicit_models.language_models.forward import forward
from implicit_models.language_models.source_names import SourceError
from implicit_models.problems.word_problem.evaluation.exponents import lyapunov_exponents
from tests.language_models.models import (
    EXPLICIT_LLAMA,
    IMPLICIT,
    IMPLICIT_SLIDING,
    LSTM,
    VOCABULARY,
    small_model,
)

SEARCH = SearchSettings(damping=0.8, tolerance=0.01, max_steps=64)


def _texts(num_sequences, length):
    draw = np.random.default_rng(0)
    return draw.integers(VOCABULARY, size=(num_sequences, length))


def test_exponents_of_an_lstm_are_those_of_autograds_jacobians():
    model = small_model(LSTM)
    texts, burn_in = _texts(2, 14), 6
    found = lyapunov_exponents(model, texts, None, num_exponents=1000, burn_in=burn_in)
    model = model.double()
    lstm = next(part for part in model.modules() if isinstance(part, torch.nn.LSTM))
    shape = (lstm.num_layers, 1, lstm.hidden_size)
    size = 2 * lstm.num_layers * lstm.hidden_size
    assert found.shape == (size,)

    def step(state: torch.Tensor, token: int) -> torch.Tensor:
        embedded = model.get_input_embeddings()(torch.tensor([[token]]))
        hidden, cell = state.split(size // 2)
        _, after = lstm(embedded, (hidden.view(shape), cell.view(shape)))
        return torch.cat([each.flatten() for each in after])

    expected = []
    for text in texts:
        state, frame = torch.zeros(size, dtype=torch.float64), torch.eye(size, dtype=torch.float64)
        growth = []
        for position, token in enumerate(text.tolist()):
            if position >= burn_in // 2:
                jacobian = torch.autograd.functional.jacobian(lambda s, t=token: step(s, t), state)
                frame, stretched = torch.linalg.qr(jacobian @ frame)
                growth += [stretched.diagonal().abs().log()] if position >= burn_in else []
            state = step(state, token).detach()
        expected.append(torch.stack(growth).mean(0).numpy())
    # Of so few tokens each exponent is its starting frame's as well; their sum is no frame's.
    assert found.sum() == pytest.approx(np.mean(expected, axis=0).sum(), rel=1e-3)
    assert found[0] == pytest.approx(np.mean(expected, axis=0).max(), abs=0.2)


def test_the_carry_of_an_implicit_model_grows_as_its_pieces_say():
    model = small_model(IMPLICIT)
    texts = _texts(1, 12)
    (largest,) = lyapunov_exponents(model, texts, SEARCH, num_exponents=1, burn_in=6)
    assert -5 < largest < 1
    again = lyapunov_exponents(model, texts, SEARCH, num_exponents=3, burn_in=6)
    assert again[0] == pytest.approx(largest, abs=0.5) and (np.diff(again) <= 0).all()


def test_the_largest_exponent_of_a_sliding_window_is_that_of_one_perturbation():
    model, length, burn_in = small_model(IMPLICIT_SLIDING), 30, 14
    (text,) = _texts(1, length)
    (largest,) = lyapunov_exponents(model, text[None], SEARCH, num_exponents=1, burn_in=burn_in)
    phase, rows = dataclasses.replace(SEARCH, tolerance=1e-13, max_steps=2000).phase(), 2
    memory: Any = initial_memory(model, rows)
    growth, size = [], 1e-5
    with torch.no_grad():
        for position, token in enumerate(torch.from_numpy(text)):
            apart = {n: t[1] - t[0] for n, t in memory.tensors().items() if t.is_floating_point()}
            norm = sum(each.square().sum() for each in apart.values()).sqrt()
            if position > burn_in:
                growth.append((norm / size).log().item())
            if position >= burn_in // 2:
                moved = {n: torch.ones_like(d) if not norm else d / norm for n, d in apart.items()}
                tensors = dict(memory.tensors())
                for name, direction in moved.items():
                    first = tensors[name][0]
                    tensors[name] = torch.stack([first, first + size * direction])
                memory = memory.resumed(tensors)
            memory = forward(model, token.expand(rows, 1), phase, memory).memory
    assert largest == pytest.approx(np.mean(growth), abs=0.05)
    assert -3 < largest < 0


def test_a_state_that_grows_is_refused():
    with pytest.raises(SourceError, match="fixed size"):
        lyapunov_exponents(
            small_model(EXPLICIT_LLAMA), _texts(1, 8), None, num_exponents=2, burn_in=2
        )
