"""Reading labelled sequences with a model: its predictions and what the search for them cost."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, Integer

from implicit_models.bars import bar
from implicit_models.cost.flops import model_flops
from implicit_models.cost.reading import reading_flops
from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation.search import Search, join
from implicit_models.language_models.forward import forward
from implicit_models.language_models.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """The most likely label at every position.

    Attributes
    ----------
    labels
        Predicted labels.
    search
        None for a model without a fixed point to search.
    flops
        Of all forward passes.
    seconds
        Wall time of all forward passes.
    """

    labels: Int[np.ndarray, "N L"]
    search: Search | None
    flops: float
    seconds: float


@torch.inference_mode()
def predict(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    *,
    phase: Phase | None,
    batch_size: int,
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
    description
        What the bar says.
    """
    if not len(inputs):
        raise ValueError("there is no sequence to read; num_sequences must be at least 1")
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    labels: list[np.ndarray] = []
    searches: list[Search] = []
    shapes, flops, seconds = model_flops(model), 0.0, 0.0
    window = phase.window.width if phase is not None and phase.window else None
    with bar(len(inputs), description, "sequence") as counted:
        for start in range(0, len(inputs), batch_size):
            batch = np.array(inputs[start : start + batch_size], dtype=np.int64)
            tokens = torch.from_numpy(batch).to(device)
            started = time.perf_counter()
            output = forward(model, tokens, phase)
            labels.append(output.logits.argmax(-1).cpu().numpy())  # waits for the device
            seconds += time.perf_counter() - started
            flops += batch.size * shapes.head + reading_flops(
                shapes,
                num_sequences=len(batch),
                length=batch.shape[1],
                search=output.search,
                window=window,
            )
            if output.search is not None:
                lengths = np.full(len(batch), batch.shape[1])
                searches.append(Search.of(output.search, lengths))
            counted.update(len(batch))
    search = join(searches) if searches else None
    return Predictions(labels=np.concatenate(labels), search=search, flops=flops, seconds=seconds)
