"""What a state keeps of its past: is an error forgotten, or handed on from token to token."""

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Integer

from implicit_models.bars import bar
from implicit_models.equilibrium.phase import SearchSettings
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.word_problem.evaluation.states import read_states


@dataclass(frozen=True, kw_only=True)
class PastDistance:
    """How far states of one product stay apart when the same tokens follow different pasts.

    Attributes
    ----------
    num_pairs
        The pairs of sequences that were read.
    distance
        After 0, 1, 2 ... common tokens: mean Euclidean distance between the carries of a pair, over
        that between carries of unequal products. Where it falls to zero the state forgets by
        which word its product was reached, and an error with it; where it stays, errors are handed
        on from token to token and add up. NaN where no two products are unequal (those of a monoid
        that are absorbed), or all carries are the same.
    """

    num_pairs: int
    distance: Float[np.ndarray, " K"]

    def by_common_tokens(self) -> dict[str, float]:
        """Return the distances that are known by the number of common tokens, as JSON has it."""
        known = enumerate(self.distance.tolist())
        return {str(count): value for count, value in known if not math.isnan(value)}

    def rows(self) -> list[dict[str, float | None]]:
        """Return a row for each number of common tokens; None where the distance is not known."""
        return [
            {"common_tokens": count, "distance": None if math.isnan(value) else value}
            for count, value in enumerate(self.distance.tolist())
        ]


def past_distance(
    model: LanguageModel,
    inputs: Integer[np.ndarray, "2P L"],
    labels: Integer[np.ndarray, "2P L"],
    num_common: int,
    search: SearchSettings | None,
    zeroed: Collection[str] = (),
) -> PastDistance:
    """Measure what is left of different pasts, while the same tokens follow them.

    Parameters
    ----------
    inputs, labels
        Pairs of sequences, one after the other, and their products: the last ``num_common`` tokens
        of a pair are the same, and so are the products just before them and from there on
        (`sequences.merging_sequences` draws such).
    search, zeroed
        As in `states.read_states`.

    Raises
    ------
    SourceError
        Where the model's state grows with the sequence, or it has none.
    """
    products = torch.from_numpy(np.array(labels, dtype=np.int64))
    first = inputs.shape[1] - num_common - 1
    found = []
    with bar(inputs.shape[1], "pasts", "token") as counted:
        for position, state in enumerate(read_states(model, inputs, search, zeroed)):
            if position >= first:
                distances = torch.cdist(state.carry, state.carry)
                answer = products[:, position].to(distances.device)
                of_pairs = distances[0::2, 1::2].diagonal().mean().item()
                unequal = distances[answer[:, None] != answer].mean().item()
                found.append(of_pairs / unequal if unequal > 0 else math.nan)
            counted.update()
    return PastDistance(num_pairs=len(inputs) // 2, distance=np.array(found))
