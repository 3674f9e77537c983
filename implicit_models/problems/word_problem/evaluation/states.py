"""Word problems read token by token, the state handed on, as the sequential mode does.

Every model with a state of a fixed size can be read so, implicit or not.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from implicit_models.equilibrium.phase import Phase, SearchSettings
from implicit_models.equilibrium.solution import Solution
from implicit_models.families.family import initial_memory
from implicit_models.language_models.forward import forward
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.memory import Memory


@dataclass(frozen=True)
class State:
    """What a model says and hands on after a token.

    Attributes
    ----------
    carry
        All numbers that it hands on, side by side.
    search
        None for an explicit model.
    """

    logits: Float[Tensor, "N V"]
    carry: Float[Tensor, "N D"]
    search: Solution | None


def read_states(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    search: SearchSettings | None,
    zeroed: Collection[str] = (),
) -> Iterator[State]:
    """Yield the state after each token, as the sequences are read up to there.

    Parameters
    ----------
    search
        Of the tokens, one after another: a window in it has no meaning here. None for an explicit
        model.
    zeroed
        Tensors of the carry that are set to zero after every token.

    Raises
    ------
    SourceError
        Where the model's state grows with the sequence, or it has none.
    ValueError
        Where the carry has no such tensor.
    """
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    tokens = torch.from_numpy(np.array(inputs, dtype=np.int64)).to(device)
    memory, phase = initial_memory(model, len(tokens)), _sequential(search)
    for name in zeroed:
        if name not in memory.tensors():
            raise ValueError(
                f"no tensor of the carry is {name}; allowed are {', '.join(memory.tensors())}"
            )
    for position in range(tokens.shape[1]):
        with torch.inference_mode():
            output = forward(model, tokens[:, position : position + 1], phase, memory)
            assert output.memory is not None
            memory = output.memory
            if zeroed:
                kept = memory.tensors().items()
                memory = memory.resumed(
                    {name: value * (name not in zeroed) for name, value in kept}
                )
            state = State(output.logits[:, 0], flat_carry(memory).double(), output.search)
        yield state


def flat_carry(memory: Memory) -> Float[Tensor, "N D"]:
    """Return all floating-point numbers of a memory side by side, in the order of its tensors."""
    states = [state.flatten(1) for state in memory.tensors().values() if state.is_floating_point()]
    return torch.cat(states, dim=1)


def _sequential(search: SearchSettings | None) -> Phase | None:
    """Return the phase that searches token by token."""
    if search is None:
        return None
    return (search if search.window is None else replace(search, window=1)).phase()
