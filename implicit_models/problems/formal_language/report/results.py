"""What the stages left of a model of a formal language."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from implicit_models.problems.formal_language.parameters import FormalLanguageParameters
from implicit_models.reporting.comparison import Score
from implicit_models.reporting.figures.style import RunStyle
from implicit_models.reporting.intervals import share_error
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.sections import Section

VALIDATION = "validation"


class LengthAccuracy(NamedTuple):
    """The accuracy over strings of neighbouring lengths."""

    shortest: int
    longest: int
    accuracy: float
    num_answers: int

    @property
    def error(self) -> float:
        """Its standard error, as if all answers were independent."""
        return share_error(self.accuracy, self.num_answers)


@dataclass(frozen=True, kw_only=True)
class FormalLanguageResults(RunResults):
    """A run on a formal language: accuracy as trained and on longer strings, by length."""

    @property
    def splits(self) -> list[str]:
        """The splits that were read: the validation strings, then the tests."""
        return list(self.evaluation["splits"])

    @property
    def tests(self) -> list[str]:
        """The tests among them."""
        return [name for name in self.splits if name != VALIDATION]

    @property
    def language(self) -> str:
        """The name of the language."""
        return self.evaluation["language"]

    def score(self, split: str) -> Score:
        """Return an accuracy, and its standard error, as if each string counted once."""
        accuracy = self.evaluation["accuracy"][split]
        return accuracy, share_error(accuracy, self.evaluation["num_sequences"][split])

    def by_length(self, split: str) -> list[LengthAccuracy]:
        """Return the accuracy by length of the strings of a split."""
        return [
            LengthAccuracy(
                shortest=int(row["shortest"]),
                longest=int(row["longest"]),
                accuracy=float(row["accuracy"]),
                num_answers=int(row["num_answers"]),
            )
            for row in self.position_rows
            if row["split"] == split
        ]

    @property
    def ranked_chance(self) -> float | None:
        """What the most frequent answer has of the first test."""
        return self.chance_of("accuracy", self.tests[0])

    @property
    def chance_loss(self) -> float | None:
        """The loss of a guess where answers alone are learned; None where all tokens are."""
        if self.evaluation["objective"] == "all":
            return None
        return -math.log(self.chance_of("accuracy", VALIDATION))

    def scores(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the run beside its costs."""
        names = ("language", "size", "objective", "chance")
        scored = ("accuracy", "scaled_accuracy", "share_all_right")
        searched = ("self_iterations", "evaluations_per_token", "share_converged")
        return {
            **{name: self.evaluation[name] for name in (*names, *scored, *searched)},
            "standard_errors": {"accuracy": {name: self.score(name)[1] for name in self.splits}},
        }

    @classmethod
    def section(
        cls,
        runs: "Sequence[FormalLanguageResults]",
        dataset: FormalLanguageParameters,
        parameters: ReportParameters,
        styles: Mapping[str, RunStyle],
    ) -> Section:
        """Write the section of the runs on one language."""
        from implicit_models.problems.formal_language.report.section import (
            formal_language_section,
        )

        return formal_language_section(runs, dataset, parameters, styles)
