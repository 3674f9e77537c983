"""What the stages left of a model of catbAbI."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from implicit_models.reporting.comparison import Score
from implicit_models.reporting.figures.style import RunStyle
from implicit_models.reporting.intervals import share_error
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.sections import Section


class Share(NamedTuple):
    """An accuracy, and over how many questions it is."""

    accuracy: float
    num_questions: int

    @property
    def score(self) -> Score:
        """The accuracy and its standard error, as if the questions were independent."""
        return self.accuracy, share_error(self.accuracy, self.num_questions)


class Word(NamedTuple):
    """The mean of the self-iterations over all tokens that are a word."""

    self_iterations: float
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class CatbabiResults(RunResults):
    """A run on a stream of bAbI's tasks: accuracy by task and by distance, search by word."""

    @property
    def is_original(self) -> bool:
        """Whether the stories are those of bAbI's files, and not generated."""
        return self.evaluation["source"] == "files"

    @property
    def objective(self) -> str:
        """What was trained on: ``"answers"`` or ``"all"`` tokens."""
        return self.evaluation["objective"]

    @property
    def overall(self) -> Share:
        """The accuracy over all questions."""
        return Share(self.evaluation["accuracy"], self.evaluation["num_questions"])

    @property
    def by_task(self) -> dict[int, Share]:
        """The accuracy of each task that has questions, in their order."""
        counts = self.evaluation["num_questions_by_task"]
        found = {
            int(task): Share(accuracy, counts[task])
            for task, accuracy in self.evaluation["accuracy_by_task"].items()
            if accuracy is not None and counts.get(task)
        }
        return dict(sorted(found.items()))

    @property
    def by_distance(self) -> dict[str, Share]:
        """The accuracy by the lines back to the furthest supporting fact, the nearest first."""
        found = {
            distance: Share(each["accuracy"], each["num_questions"])
            for distance, each in (self.evaluation.get("accuracy_by_distance") or {}).items()
            if each["num_questions"] and each["accuracy"] is not None
        }
        return {distance: found[distance] for distance in sorted(found, key=_nearness)}

    @property
    def iterations_by_task(self) -> dict[int, float]:
        """The mean self-iterations of a token of each task; empty where nothing is searched."""
        found = self.evaluation.get("self_iterations_by_task") or {}
        known = {int(task): mean for task, mean in found.items() if mean is not None}
        return dict(sorted(known.items()))

    @property
    def iterations_by_word(self) -> dict[str, Word]:
        """The self-iterations of each word; empty where nothing is searched."""
        found = self.evaluation.get("self_iterations_by_word") or {}
        return {
            word: Word(each["mean"], each["num_tokens"])
            for word, each in found.items()
            if each["mean"] is not None
        }

    @property
    def test_flops_per_token(self) -> float | None:
        """Floating-point operations of the test, for a token; None where they are not known."""
        evaluation = self.evaluation
        found = evaluation.get("flops_per_token")
        return (evaluation.get("cost") or {}).get("flops_per_token") if found is None else found

    @property
    def ranked_chance(self) -> float | None:
        """What the most frequent answers of the tasks have."""
        return self.chance_of("accuracy")

    @property
    def test_perplexity(self) -> float | None:
        """The perplexity of every word of the test stream; None where answers alone are learned."""
        return self.evaluation.get("perplexity") if self.objective == "all" else None

    @property
    def chance_loss(self) -> float | None:
        """The training loss of a model that knows nothing.

        Of the answers it is that of the most frequent one of each task, or less; of all tokens the
        first that was logged, where the weights began at random.
        """
        if self.objective == "answers":
            return -math.log(self.chance_of("accuracy"))
        losses = self.history.get("loss")
        return None if losses is None or self.has_source else float(losses.values[0])

    def scores(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the run beside its costs."""
        evaluation = self.evaluation
        names = ("source", "objective", "num_questions", "chance", "accuracy", "accuracy_by_task")
        searched = ("perplexity", "self_iterations", "evaluations_per_token", "share_converged")
        return {
            **{name: evaluation[name] for name in names},
            **{name: evaluation.get(name) for name in searched},
            "test_flops_per_token": self.test_flops_per_token,
        }

    @classmethod
    def section(
        cls,
        runs: "Sequence[CatbabiResults]",
        dataset: Any,
        parameters: ReportParameters,
        styles: Mapping[str, RunStyle],
    ) -> Section:
        """Write the section of the runs on one stream."""
        from implicit_models.problems.catbabi.report.section import catbabi_section

        return catbabi_section(runs, styles)


def mean_of(value: Any) -> float | None:
    """Return the mean of a distribution, or a single number as it is."""
    return value.get("mean") if isinstance(value, Mapping) else value


def distances_of(runs: Sequence[CatbabiResults]) -> list[str]:
    """Return every distance that a run has questions at, the nearest first."""
    return sorted({distance for run in runs for distance in run.by_distance}, key=_nearness)


def _nearness(distance: str) -> tuple[int, bool]:
    """Return what orders ``1``, ``3-4`` and ``>8``."""
    number = re.search(r"\d+", distance)
    return int(number[0]) if number else 0, distance.startswith(">")
