"""Lyapunov exponents of the state from token to token: does an error of it grow, stay or shrink."""

import copy
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from implicit_models.bars import bar
from implicit_models.equilibrium.phase import Phase, SearchSettings
from implicit_models.families.family import initial_memory
from implicit_models.language_models.forward import forward
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.memory import Memory
from implicit_models.problems.word_problem.evaluation.states import flat_carry

_STEP = 1e-4  # of the finite differences, over the norm of the state
_TOLERANCE = 1e-11
_MAX_STEPS = 500


def lyapunov_exponents(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    search: SearchSettings | None,
    *,
    num_exponents: int,
    burn_in: int,
) -> Float[np.ndarray, " K"]:
    """Estimate the largest Lyapunov exponents of a model's carry, natural logarithms per token.

    A small error in the direction of an exponent of zero is neither forgotten nor enlarged; as many
    of them as a continuous group has dimensions is how a model betrays that it turns its state by
    rotations. Benettin's method: perturbations are read along with the sequence and made
    orthonormal after every token. Their Jacobian is taken by finite differences in float64.

    Parameters
    ----------
    search
        Its solver and damping are taken, to a tolerance of its own. None for an explicit model.
    num_exponents
        How many; at most as many as the carry has numbers.
    burn_in
        Tokens read, half of them without perturbations, before growth is measured on the rest.

    Returns
    -------
    Float[np.ndarray, " K"]
        Mean over the sequences, the largest first.

    Raises
    ------
    SourceError
        Where the model's state grows with the sequence, or it has none.
    """
    precise = copy.deepcopy(model).double().eval()
    phase = None
    if search is not None:
        limits = {"tolerance": _TOLERANCE, "max_steps": _MAX_STEPS}
        phase = replace(search, window=None, patience=None, **limits).phase()
    found = []
    with bar(len(inputs), "Lyapunov exponents", "sequence") as counted:
        for row in torch.from_numpy(np.array(inputs, dtype=np.int64)):
            found.append(_of_sequence(precise, row, phase, num_exponents, burn_in))
            counted.update()
    return np.sort(np.mean(found, axis=0))[::-1]


@torch.inference_mode()
def _of_sequence(
    model: LanguageModel, tokens: Tensor, phase: Phase | None, num_exponents: int, burn_in: int
) -> Float[np.ndarray, " K"]:
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    tokens, start = tokens.to(device), burn_in // 2
    memory = initial_memory(model, 1)
    for token in tokens[:start]:
        memory = _after(model, token.expand(1), phase, memory)
    state = flat_carry(memory)[0]
    count = min(num_exponents, len(state))
    draw = torch.Generator().manual_seed(0)
    directions = torch.randn(len(state), count, generator=draw, dtype=torch.float64).to(device)
    directions = torch.linalg.qr(directions).Q
    tensors, growth = memory.tensors(), []
    together = memory.resumed(
        {name: each.expand(1 + count, *each.shape[1:]) for name, each in tensors.items()}
    )
    for position in range(start, len(tokens)):
        step = _STEP * torch.linalg.vector_norm(state).clamp_min(1.0)
        rows = torch.cat([state[None], state + step * directions.T])
        begun = together.resumed(_split(rows, together))
        together = _after(model, tokens[position].expand(1 + count), phase, begun)
        after = flat_carry(together)
        state = after[0]
        directions, stretched = torch.linalg.qr((after[1:] - state).T / step)
        if position >= burn_in:
            growth.append(stretched.diagonal().abs().clamp_min(torch.finfo(torch.float64).tiny))
    return torch.stack(growth).log().mean(0).cpu().numpy()


def _after(model: LanguageModel, token: Tensor, phase: Phase | None, memory: Memory) -> Memory:
    following = forward(model, token[:, None], phase, memory).memory
    assert following is not None
    return following


def _split(rows: Float[Tensor, "N D"], like: Memory) -> dict[str, Tensor]:
    """Return the tensors that `flat_carry` has put side by side; other ones as they are."""
    found, place = {}, 0
    for name, state in like.tensors().items():
        found[name] = state
        if state.is_floating_point():
            size = state[0].numel()
            found[name] = rows[:, place : place + size].reshape(len(rows), *state.shape[1:])
            place += size
    return found
