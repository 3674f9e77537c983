"""What the stages left of a model of a word problem."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from implicit_models.problems.word_problem.parameters import WordProblemParameters
from implicit_models.reporting.figures.style import RunStyle
from implicit_models.reporting.intervals import share_error
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.sections import Section

_ENOUGH = 16  # sequences, for an accuracy at a position


class UnknownLengthError(ValueError):
    """A run was not evaluated at any length that it was trained on."""


@dataclass(frozen=True, kw_only=True)
class WordProblemResults(RunResults):
    """A run on a word problem: accuracy by length and by position."""

    solved_over: ClassVar[str] = "the last 10 tokens"

    @property
    def lengths(self) -> list[int]:
        """The evaluated lengths, in order."""
        return sorted(int(length) for length in self.evaluation["accuracy"])

    @property
    def solved_length(self) -> int:
        """The longest evaluated length that is not longer than the training length.

        Raises
        ------
        UnknownLengthError
            Where there is none.
        """
        known = [length for length in self.lengths if length <= self.training_length]
        if not known:
            raise UnknownLengthError(
                f"{self.name} was trained on {self.training_length} tokens and evaluated on "
                f"{self.lengths} only; add a length of at most {self.training_length} to "
                "evaluation.word_problem.lengths"
            )
        return known[-1]

    @cached_property
    def by_position(self) -> dict[int, Float[np.ndarray, " L"]]:
        """Accuracy at each position, by length."""
        found: dict[int, list[float]] = {}
        for row in self.position_rows:
            found.setdefault(int(row["length"]), []).append(float(row["accuracy"]))
        return {length: np.array(accuracies) for length, accuracies in found.items()}

    @property
    def tracked_at_most(self) -> int:
        """The longest length with enough sequences for an accuracy at a position."""
        counts = self.evaluation["num_sequences"]
        enough = [length for length in self.lengths if counts[str(length)] >= _ENOUGH]
        return max(enough or self.lengths[:1])

    def tracked_length(self, accuracy: float) -> int:
        """Return how many tokens the model follows before its accuracy at one falls below this.

        That is of sequences of `tracked_at_most` tokens, and at most their length.
        """
        longest = self.tracked_at_most
        lost = np.flatnonzero(self.by_position[longest] < accuracy)
        return int(lost[0]) if len(lost) else longest

    def accuracy_at_end(self, length: int) -> float:
        """Return the accuracy of the last 10 tokens of test sequences of a length."""
        return self.evaluation["accuracy_last_10"][str(length)]

    def chance_at_end(self, length: int) -> float | None:
        """Return what chance has of the last 10 tokens; None of a length that was not tested."""
        return self.evaluation["chance"]["accuracy_last_10"].get(str(length))

    @property
    def swept_chance(self) -> float | None:
        """What chance has of the last 10 tokens at the length of the sweep; None without one."""
        sweep = self.test_time_compute
        return None if sweep is None else self.chance_at_end(sweep["length"])

    @property
    def ranked_chance(self) -> float | None:
        """What chance has of the last 10 tokens of the longest sequences."""
        return self.chance_at_end(self.lengths[-1])

    @cached_property
    def past_distance(self) -> dict[int, float]:
        """What is left of different pasts by the number of common tokens; empty where unknown."""
        found = self.evaluation["past_distance"]
        return {int(count): distance for count, distance in found.items()}

    @property
    def further_tests(self) -> Mapping[str, Mapping[str, Any]]:
        """What came of tests with other shares of easy tokens, by the identity's probability."""
        return self.evaluation.get("further_tests", {})  # not in results of before November 2026

    @property
    def chance_loss(self) -> float:
        """The loss of always giving the most frequent label its own frequency, or less.

        It is that of the tested length closest to the one trained on.
        """
        closest = min(self.lengths, key=lambda length: abs(length - self.training_length))
        return -math.log(self.chance_of("accuracy", closest))

    def accuracy_error(self, length: str) -> float:
        """Return an accuracy's standard error, as if a sequence were all right or all wrong."""
        accuracy = self.evaluation["accuracy_last_10"][length]
        return share_error(accuracy, self.evaluation["num_sequences"][length])

    def solutions(self) -> dict[int, float]:
        """Return the accuracy of the last 10 tokens by length, from the solved length on."""
        accuracy, first = self.evaluation["accuracy_last_10"], self.solved_length
        return {length: accuracy[str(length)] for length in self.lengths if length >= first}

    def scores(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the run beside its costs."""
        evaluation = self.evaluation
        return {
            "accuracy": dict(evaluation["accuracy"]),
            "accuracy_last_10": dict(evaluation["accuracy_last_10"]),
            "chance": evaluation["chance"],
            "standard_errors": {
                "accuracy_last_10": {
                    length: self.accuracy_error(length) for length in evaluation["accuracy_last_10"]
                }
            },
            "self_iterations": dict(evaluation["self_iterations"]),
            "evaluations_per_token": dict(evaluation["evaluations_per_token"]),
            "mode_token_match": evaluation["mode_token_match"],
            "further_tests": {
                probability: dict(found["accuracy_last_10"])
                for probability, found in self.further_tests.items()
            },
            "past_distance": dict(evaluation["past_distance"]),
        }

    @classmethod
    def section(
        cls,
        runs: "Sequence[WordProblemResults]",
        dataset: WordProblemParameters,
        parameters: ReportParameters,
        styles: Mapping[str, RunStyle],
    ) -> Section:
        """Write the section of the runs on one word problem."""
        from implicit_models.problems.word_problem.report.section import word_problem_section

        return word_problem_section(runs, dataset, parameters, styles)


def chance_by_length(
    tested: Iterable[tuple[str, Mapping[str, Any]]], score: str
) -> dict[str, dict[int, float]]:
    """Return what chance has of a score at each length, under the name that it is shown by.

    Parameters
    ----------
    tested
        Data sets, and evaluations on them. Where all have the same chance it stands once; else
        each is named after its data set.
    """
    found: dict[str, dict[int, float]] = {}
    for dataset, evaluation in tested:
        of_test = evaluation["chance"][score]
        found.setdefault(dataset, {}).update({int(n): level for n, level in of_test.items()})
    first = next(iter(found.values()), {})
    if found and all(levels == first for levels in found.values()):
        return {"chance": first}
    return {f"chance, {dataset}": levels for dataset, levels in found.items()}
