"""Models of catbAbI compared, over all questions and task by task."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

from implicit_models.problems.catbabi.report.noise import welch_p_value
from implicit_models.problems.catbabi.report.results import CatbabiResults, Share
from implicit_models.reporting.comparison import Candidate, best_of_kinds, candidates

LEVEL = 0.05
"""The chance, if two models were alike, that any of their tasks is said to differ."""


@dataclass(frozen=True, kw_only=True)
class TaskComparison:
    """An implicit and an explicit model of as many layers, task by task.

    Attributes
    ----------
    ahead, behind, level
        The tasks on which the implicit one is better or worse beyond noise, and the others.
    """

    implicit: Candidate
    explicit: Candidate
    num_layers: int
    ahead: Sequence[int]
    behind: Sequence[int]
    level: Sequence[int]

    @property
    def num_tasks(self) -> int:
        """The tasks that both were tested on."""
        return len(self.ahead) + len(self.behind) + len(self.level)


def models_of(runs: Iterable[CatbabiResults]) -> list[Candidate]:
    """Return the models, each with all of its seeds, by the accuracy over all questions."""
    return candidates(runs, lambda run: run.overall.score)


def part_of(model: Candidate, share: Callable[[CatbabiResults], Share | None]) -> Candidate | None:
    """Return a model with the accuracy of some of the questions; None where a seed has none."""
    found = [share(run) for run in runs_of(model)]
    known = [each.score for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    values, errors = zip(*known, strict=True)
    return Candidate(
        name=model.name,
        kind=model.kind,
        runs=model.runs,
        values=values,
        sampling_error=fmean(errors),
    )


def runs_of(model: Candidate) -> list[CatbabiResults]:
    """Return the runs of a model, one for each seed."""
    return cast("list[CatbabiResults]", list(model.runs))


def layers_of(model: Candidate) -> int | None:
    """Return how many layers a model has, where its entry tells."""
    return runs_of(model)[0].num_layers


def family_of(model: Candidate) -> str:
    """Return the family of a model."""
    return getattr(model.runs[0].entry.model, "family", "")


def layers_known(runs: Sequence[CatbabiResults]) -> list[int]:
    """Return the numbers of layers that the runs have."""
    return sorted({run.num_layers for run in runs if run.num_layers is not None})


def of_task(model: Candidate, task: int) -> Candidate | None:
    """Return a model with its accuracy on one task."""
    return part_of(model, lambda run: run.by_task.get(task))


def tasks_of(runs: Iterable[CatbabiResults]) -> list[int]:
    """Return the tasks that any run was tested on."""
    return sorted({task for run in runs for task in run.by_task})


def compare_tasks(runs: Sequence[CatbabiResults]) -> list[TaskComparison]:
    """Compare implicit models with explicit ones of as many layers, fewer layers first.

    Of several models of as many layers it is the best, of explicit ones that of the same family
    where there is one.
    """
    models = models_of(runs)
    found = []
    for layers in layers_known(runs):
        alike = [model for model in models if layers_of(model) == layers]
        implicit, *_ = best_of_kinds(alike, higher_is_better=True)
        explicit = [model for model in alike if model.kind == "explicit"]
        if implicit.kind == "implicit" and explicit:
            of_family = [model for model in explicit if family_of(model) == family_of(implicit)]
            rival = max(of_family or explicit, key=lambda model: model.mean)
            found.append(_compare(implicit, rival, layers))
    return found


def best_comparison(runs: Sequence[CatbabiResults]) -> TaskComparison | None:
    """Return the comparison of the best implicit model that has one; None where none has."""
    return max(compare_tasks(runs), key=lambda each: each.implicit.mean, default=None)


def iterations_of(model: Candidate, task: int) -> float | None:
    """Return the mean self-iterations of a task over a model's seeds; None where unknown."""
    found = [run.iterations_by_task.get(task) for run in runs_of(model)]
    known = [each for each in found if each is not None]
    return fmean(known) if known and len(known) == len(found) else None


def words_of(model: Candidate, fewest_tokens: int) -> Mapping[str, float]:
    """Return the mean self-iterations of each word over a model's seeds, the most first.

    Words of fewer tokens than ``fewest_tokens`` with any seed are left out.
    """
    of_runs = [run.iterations_by_word for run in runs_of(model)]
    common = set.intersection(*(set(words) for words in of_runs)) if of_runs else set()
    found = {
        word: fmean(words[word].self_iterations for words in of_runs)
        for word in common
        if all(words[word].num_tokens >= fewest_tokens for words in of_runs)
    }
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def _compare(implicit: Candidate, explicit: Candidate, num_layers: int) -> TaskComparison:
    pairs = {
        task: (one, other)
        for task in tasks_of([*runs_of(implicit), *runs_of(explicit)])
        if (one := of_task(implicit, task)) and (other := of_task(explicit, task))
    }
    ahead, behind, level = [], [], []
    for task, (one, other) in pairs.items():
        if welch_p_value(one, other) * len(pairs) >= LEVEL:
            level.append(task)
        else:
            (ahead if one.mean > other.mean else behind).append(task)
    return TaskComparison(
        implicit=implicit,
        explicit=explicit,
        num_layers=num_layers,
        ahead=ahead,
        behind=behind,
        level=level,
    )
