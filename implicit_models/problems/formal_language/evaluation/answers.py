"""Whether a model answers right, split by split, at which length and at what cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from implicit_models.bars import bar
from implicit_models.equilibrium.phase import Phase
from implicit_models.evaluation import metrics
from implicit_models.evaluation.scoring import IGNORED, score
from implicit_models.evaluation.search import Search, join
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.problems.formal_language.data.splits import Split

_BINS = 8  # of lengths, in a split with many


@dataclass(frozen=True, kw_only=True)
class SplitResult:
    """How a model answers the strings of a split.

    Attributes
    ----------
    lengths
        Of each string, as the language counts them.
    is_asked, is_right
        Of each token, whether something is asked at it, and whether the likeliest is the answer.
    most_frequent
        The share of the answers that are the most frequent one.
    search
        What the searches cost each string, and how they ended; None for an explicit model.
    flops, seconds
        Of reading all strings, and its wall time.
    """

    lengths: Int[np.ndarray, " N"]
    num_tokens: Int[np.ndarray, " N"]
    is_asked: Bool[np.ndarray, "N T"]
    most_frequent: float
    is_right: Bool[np.ndarray, "N T"]
    search: Search | None
    flops: float
    seconds: float

    @property
    def accuracy(self) -> float:
        """The share of the answers that are right."""
        return metrics.share(self.is_right[self.is_asked])

    @property
    def share_all_right(self) -> float:
        """The share of the strings whose answers are all right."""
        return metrics.share(np.all(self.is_right | ~self.is_asked, axis=1, keepdims=True))

    @property
    def num_answers(self) -> int:
        """How many answers were asked for."""
        return int(self.is_asked.sum())

    def length_rows(self) -> list[dict[str, Any]]:
        """Return the accuracy by length, of neighbouring lengths together where there are many."""
        known = np.unique(self.lengths)
        bins = np.array_split(known, min(_BINS, len(known)))
        rows = []
        for lengths in bins:
            chosen = (self.lengths >= lengths[0]) & (self.lengths <= lengths[-1])
            asked = self.is_asked[chosen]
            rows.append(
                {
                    "length": int(known[-1]),
                    "shortest": int(lengths[0]),
                    "longest": int(lengths[-1]),
                    "num_answers": int(asked.sum()),
                    "accuracy": metrics.share(self.is_right[chosen][asked]),
                }
            )
        return rows

    def metrics(self, num_answers: int) -> dict[str, Any]:
        """Return what is told of the split.

        Parameters
        ----------
        num_answers
            Of the language: whoever guesses is right once in so many times.
        """
        chance = 1 / num_answers
        search = self.search
        return {
            "accuracy": self.accuracy,
            "scaled_accuracy": (self.accuracy - chance) / (1 - chance),
            "share_all_right": self.share_all_right,
            "num_answers": self.num_answers,
            "num_sequences": len(self.lengths),
            "longest": int(self.lengths.max()),
            "self_iterations": metrics.spread(search.self_iterations) if search else None,
            "evaluations_per_token": metrics.spread(search.evaluations_per_token)
            if search
            else None,
            "relative_residual": metrics.distribution(search.residual) if search else None,
            "share_converged": metrics.share(search.converged) if search else None,
            "seconds": self.seconds,
        }


def read_strings(
    model: LanguageModel,
    split: Split,
    *,
    phase: Phase | None,
    batch_size: int,
    description: str,
) -> SplitResult:
    """Read strings with a model, those of similar length together.

    Parameters
    ----------
    phase
        How fixed points are searched; None for an explicit model.
    description
        What the bar says.
    """
    labels = np.asarray(split.labels, dtype=np.int64)
    is_right = np.zeros(labels.shape, dtype=bool)
    order = np.argsort(split.num_tokens, kind="stable")
    searches, flops, seconds = [], 0.0, 0.0
    with bar(len(order), description, "string") as counted:
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            lengths = split.num_tokens[rows]
            width = lengths.max()
            found = score(
                model,
                np.asarray(split.inputs[rows, :width], dtype=np.int64),
                labels[rows, :width],
                phase=phase,
                lengths=None if (lengths == width).all() else lengths,
            )
            is_right[rows, :width] = found.is_greedy
            if found.search is not None:
                searches.append(found.search)
            flops, seconds = flops + found.flops, seconds + found.seconds
            counted.update(len(rows))
    return SplitResult(
        lengths=split.lengths,
        num_tokens=split.num_tokens,
        is_asked=labels != IGNORED,
        most_frequent=metrics.chance(labels[labels != IGNORED]),
        is_right=is_right,
        search=join(searches) if searches else None,
        flops=flops,
        seconds=seconds,
    )


def by_split(results: Mapping[str, SplitResult], num_answers: int) -> dict[str, dict[str, Any]]:
    """Return what is told of each split, by what it is."""
    found = {name: result.metrics(num_answers) for name, result in results.items()}
    names = next(iter(found.values()))
    return {name: {split: each[name] for split, each in found.items()} for name in names}
