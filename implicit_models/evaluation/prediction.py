"""Reading labelled sequences with a model: its predictions and what the search for them cost."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor
from tqdm import tqdm

from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.language_models import modes
from implicit_models.language_models.building import LanguageModel
from implicit_models.language_models.modelling import ModelOutput

Read = Callable[[LanguageModel, Tensor, Phase | None], ModelOutput]


@dataclass(frozen=True, kw_only=True)
class Search:
    """What the searches cost, one entry per sequence, or per token in the sequential mode.

    Attributes
    ----------
    self_iterations
        Evaluations of the cell, the one that gives the output included.
    residual
        Relative residual of the search's last evaluation; NaN where it made none.
    converged
        Whether the tolerance was reached.
    """

    self_iterations: Int[np.ndarray, "N ..."]
    residual: Float[np.ndarray, "N ..."]
    converged: Bool[np.ndarray, "N ..."]


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """The most likely label at every position.

    Attributes
    ----------
    labels
        Predicted labels.
    search
        None for a model without a fixed point to search.
    seconds
        Wall time of all forward passes.
    """

    labels: Int[np.ndarray, "N L"]
    search: Search | None
    seconds: float


def simultaneous(
    model: LanguageModel, tokens: Int[Tensor, "B L"], phase: Phase | None
) -> ModelOutput:
    """Read all tokens of the sequences together."""
    return model(tokens, phase)


def sequential(
    model: LanguageModel, tokens: Int[Tensor, "B L"], phase: Phase | None
) -> ModelOutput:
    """Read the sequences token by token, carrying the state."""
    return modes.sequential(model, tokens, phase)


@torch.inference_mode()
def predict(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    *,
    phase: Phase | None,
    batch_size: int,
    read: Read = simultaneous,
    description: str = "evaluate",
) -> Predictions:
    """Predict the label of every position of every sequence.

    Parameters
    ----------
    phase
        How the fixed points are searched; None for a model that has none.
    batch_size
        Sequences read together. It cannot change a result: convergence is judged for each
        sequence by itself.
    read
        The mode: `simultaneous` or `sequential`.
    description
        What the progress bar says; it is silent when not on a terminal.
    """
    if not len(inputs):
        raise ValueError("there is no sequence to read; num_sequences must be at least 1")
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    labels: list[np.ndarray] = []
    searches: list[Solution] = []
    seconds = 0.0
    with tqdm(total=len(inputs), desc=description, unit="seq", disable=None, leave=False) as bar:
        for start in range(0, len(inputs), batch_size):
            batch = np.array(inputs[start : start + batch_size], dtype=np.int64)
            tokens = torch.from_numpy(batch).to(device)
            started = time.perf_counter()
            output = read(model, tokens, phase)
            labels.append(output.logits.argmax(-1).cpu().numpy())  # waits for the device
            seconds += time.perf_counter() - started
            if output.search is not None:
                searches.append(output.search)
            bar.update(len(batch))
    return Predictions(labels=np.concatenate(labels), search=_join(searches), seconds=seconds)


def _join(searches: list[Solution]) -> Search | None:
    if not searches:
        return None

    def join(name: str) -> np.ndarray:
        return np.concatenate([getattr(search, name).cpu().numpy() for search in searches])

    return Search(
        self_iterations=join("steps") + 1,
        residual=join("residual").astype(np.float64),
        converged=join("result") == Result.CONVERGED,
    )
