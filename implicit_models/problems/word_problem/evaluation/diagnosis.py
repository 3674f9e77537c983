"""Why a model loses the product: what its state is like at each position of word problems."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from implicit_models.bars import bar
from implicit_models.equilibrium.phase import SearchSettings
from implicit_models.equilibrium.solution import Result
from implicit_models.evaluation.contraction import token_radii
from implicit_models.evaluation.prediction import predict
from implicit_models.language_models.forward import is_implicit
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.word_problem.evaluation.states import State, read_states

PER_POSITION = (
    *("accuracy", "accuracy_in_window", "self_iterations", "residual", "share_converged"),
    "spectral_radius",
    *("carry_norm", "distance_equal", "distance_unequal", "nearest_equal"),
)
"""What is known of each position."""

_AT_ONCE = 64  # sequences read through a window


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a model's state is like at each position; NaN where something is not known.

    Attributes
    ----------
    num_sequences
        The sequences that were read.
    accuracy
        Share of right answers, each token searched by itself.
    accuracy_in_window
        Of the same sequences read through the window that evaluations search with. Where it is
        lower it is that search that loses the product, and not the state: its window is too wide
        for its patience, its tolerance too large, or tokens are given up. (The last tokens of a
        sequence need no patience.) NaN for an explicit model, without a window, and where some
        of the carry is zeroed.
    self_iterations
        Evaluations of the cell in a token's search, the one that gives the output included: the
        mean over the sequences. NaN for an explicit model, as are the next three.
    residual, share_converged
        Relative residual at the end of a token's search, mean, and share that reached the
        tolerance.
    spectral_radius
        Of the token's block of the cell's Jacobian, mean over the first few sequences. Below 1 the
        plain iteration converges from nearby.
    carry_norm
        Euclidean norm of the carry after the token, all of its tensors together: mean.
    distance_equal, distance_unequal
        Mean Euclidean distance between the carries of two sequences whose products are equal, and
        of two whose products differ. Where the first comes close to the second, the carry does not
        tell the elements apart any more: the states have merged.
    nearest_equal
        Of the sequences whose product another one has too, the share whose nearest carry is one of
        those. It is at chance, one in as many as there are elements, where the states have merged.
    """

    num_sequences: int
    accuracy: Float[np.ndarray, " L"]
    accuracy_in_window: Float[np.ndarray, " L"]
    self_iterations: Float[np.ndarray, " L"]
    residual: Float[np.ndarray, " L"]
    share_converged: Float[np.ndarray, " L"]
    spectral_radius: Float[np.ndarray, " L"]
    carry_norm: Float[np.ndarray, " L"]
    distance_equal: Float[np.ndarray, " L"]
    distance_unequal: Float[np.ndarray, " L"]
    nearest_equal: Float[np.ndarray, " L"]

    def rows(self) -> list[dict[str, float | None]]:
        """Return a row for each position, which count from 1; None where something is unknown."""
        return [
            {"position": position + 1}
            | {
                name: None if np.isnan(value := getattr(self, name)[position]) else float(value)
                for name in PER_POSITION
            }
            for position in range(len(self.accuracy))
        ]


def diagnose(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "N L"],
    labels: Integer[np.ndarray, "N L"],
    search: SearchSettings | None,
    *,
    num_radius_sequences: int = 0,
    zeroed: Collection[str] = (),
) -> Diagnosis:
    """Read word problems token by token, and look at the state after each.

    Parameters
    ----------
    model
        One that hands on a state of a fixed size.
    labels
        The products of the prefixes.
    search
        As in `states.read_states`.
    num_radius_sequences
        The spectral radius is that of the first so many sequences; it takes as long as dozens of
        evaluations of every token.
    zeroed
        Tensors of the carry that are set to zero after every token: what the answers need is in
        the others.

    Raises
    ------
    SourceError
        Where the model's state grows with the sequence, or it has none.
    ValueError
        Where the carry has no such tensor.
    """
    answers = torch.from_numpy(np.array(labels, dtype=np.int64))
    found: dict[str, list[float]] = {name: [] for name in PER_POSITION}
    with bar(inputs.shape[1], "diagnosis", "token") as counted:
        for position, state in enumerate(read_states(model, inputs, search, zeroed)):
            known = _measured(state, answers[:, position].to(state.logits.device))
            for name, values in found.items():
                values.append(known.get(name, np.nan))
            counted.update()
    measured = {name: np.array(values, dtype=np.float64) for name, values in found.items()}
    if is_implicit(model) and search is not None and search.window is not None and not zeroed:
        windowed = predict(model, inputs, phase=search.phase(), batch_size=_AT_ONCE)
        measured["accuracy_in_window"] = (windowed.labels == labels).mean(0)
    if is_implicit(model) and search is not None and num_radius_sequences:
        radii = token_radii(
            model,
            inputs[:num_radius_sequences],
            phase=search.phase(),
            batch_size=num_radius_sequences,
        )
        measured["spectral_radius"] = radii[0].mean(0)
    return Diagnosis(num_sequences=len(inputs), **measured)


def _measured(state: State, answer: Int[Tensor, " N"]) -> dict[str, float]:
    found = {"accuracy": _mean(state.logits.argmax(-1) == answer)}
    if state.search is not None:
        found["self_iterations"] = _mean(state.search.steps) + 1
        found["residual"] = _mean(state.search.residual)
        found["share_converged"] = _mean(state.search.result == Result.CONVERGED)
    return found | separation(state.carry, answer)


def separation(carries: Float[Tensor, "N D"], products: Int[Tensor, " N"]) -> dict[str, float]:
    """Return how far apart the carries of equal and of unequal products are; see `Diagnosis`."""
    distances = torch.cdist(carries, carries)
    itself = torch.eye(len(products), dtype=torch.bool, device=products.device)
    equal = (products[:, None] == products) & ~itself
    unequal = products[:, None] != products
    nearest = distances.masked_fill(itself, torch.inf).argmin(1)
    has_equal = equal.any(1)
    is_equal = equal[torch.arange(len(products), device=products.device), nearest]
    return {
        "carry_norm": _mean(torch.linalg.vector_norm(carries, dim=1)),
        "distance_equal": _mean_where(distances, equal),
        "distance_unequal": _mean_where(distances, unequal),
        "nearest_equal": _mean_where(is_equal.to(distances.dtype), has_equal),
    }


def _mean(values: Tensor) -> float:
    return values.double().mean().item()


def _mean_where(values: Float[Tensor, "..."], where: Bool[Tensor, "..."]) -> float:
    return values[where].mean().item()  # NaN of nothing
