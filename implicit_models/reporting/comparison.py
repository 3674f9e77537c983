"""Models compared: every seed of each counts, and a difference that may be noise is none."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from implicit_models.parameters import digest
from implicit_models.reporting.entry_results import EntryResults
from implicit_models.reporting.intervals import t_quantile
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.summary import Run, group_by_seed

KINDS = ("implicit", "explicit", "recurrent")
"""The kinds of models, in the order in which they are named."""

STEPS_LEFT_OUT = (
    "Of a model's searches that differ in max_steps alone, the one with the most counts that all "
    "of its seeds were tested with, or else the one with the most."
)
"""What is said where a comparison is without some of the tests."""

Score = tuple[float, float]
"""A score, and its standard error on the test data."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model in a comparison: all of its runs that differ in their seed only.

    Attributes
    ----------
    runs
        Those that have a score; none for a model that was trained elsewhere.
    values
        The score of each seed.
    sampling_error
        The standard error of a score on the test data, which all seeds share.
    num_without
        Further seeds, whose score is no number.
    """

    name: str
    kind: str
    runs: Sequence[RunResults]
    values: Sequence[float]
    sampling_error: float = 0.0
    num_without: int = 0

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return fmean(self.values)

    @property
    def margin(self) -> float:
        """How far to each side the 95 % interval of the mean reaches, by test data and seeds.

        Few seeds say little of their own spread, for which Student's t makes up; a single one says
        nothing of it.
        """
        count = len(self.values)
        of_seeds = 0.0
        if count > 1:
            of_seeds = t_quantile(count) * stdev(self.values) / math.sqrt(count)
        return math.hypot(2 * self.sampling_error, of_seeds)

    def is_level_with(self, other: "Candidate") -> bool:
        """Return whether the two differ by no more than what their margins come to together."""
        return abs(self.mean - other.mean) <= math.hypot(self.margin, other.margin)

    def written(self, write: Callable[[float], str]) -> str:
        """Return the score in words: of several seeds the mean, the lowest and the highest."""
        count = len(self.values)
        of = f"of {count + self.num_without} " if self.num_without else ""
        without = f"; {self.num_without} without a number" if self.num_without else ""
        if count == 1:
            return f"{write(self.mean)} (1 {of}seeds{without})" if of else write(self.mean)
        low, high = write(min(self.values)), write(max(self.values))
        spread = f"all {low}" if low == high else f"{low} to {high}"
        return f"{write(self.mean)} (mean of {count} {of}seeds, {spread}{without})"


def candidates(runs: Iterable[Run], score: Callable[[Run], Score | None]) -> list[Candidate]:
    """Return the models that have a score, under the names of their first runs."""
    found = []
    for name, group in group_by_seed(runs).items():
        scored = [(run, known) for run in group if (known := score(run)) is not None]
        if scored:
            values, errors = zip(*(known for _, known in scored), strict=True)
            found.append(
                Candidate(
                    name=name,
                    kind=group[0].kind,
                    runs=[run for run, _ in scored],
                    values=values,
                    sampling_error=fmean(errors),
                    num_without=len(group) - len(scored),
                )
            )
    return found


def fullest(tested: Sequence[EntryResults], runs: Iterable[Run]) -> list[EntryResults]:
    """Return the tests that count: of a model's that differ in ``max_steps`` alone those with one.

    That is the most that all of its seeds were tested with, so that none is left out for another
    one's further test, or else the most.

    Parameters
    ----------
    tested, runs
        As of `candidates_apart`.
    """
    of_seeds: dict[tuple[str, str], dict[str, set[int]]] = {}
    keys = _keys(tested, _first_seeds(runs))
    for key, each in zip(keys, tested, strict=True):
        of_seeds.setdefault(key, {}).setdefault(each.label, set()).add(each.max_steps)
    counts = {
        key: max(set.intersection(*steps.values()) or set.union(*steps.values()))
        for key, steps in of_seeds.items()
    }
    return [each for key, each in zip(keys, tested, strict=True) if each.max_steps == counts[key]]


def candidates_apart(
    tested: Sequence[EntryResults],
    runs: Iterable[Run],
    score: Callable[[EntryResults], Score | None],
) -> tuple[list[Candidate], list[str]]:
    """Return the models tested apart that have a score, and the names of those that have none.

    A model counts once for each search that it was tested with, of those that differ in
    ``max_steps`` alone for the `fullest`: under its first run's name, or under its first entry's
    where there are several searches.

    Parameters
    ----------
    tested
        Results whose entries have the keys of a search.
    runs
        Those that may have trained the models.
    """
    runs = list(runs)
    counted, models = fullest(tested, runs), _first_seeds(runs)
    tests: dict[tuple[str, str], dict[str, EntryResults]] = {}
    for key, each in zip(_keys(counted, models), counted, strict=True):
        tests.setdefault(key, {}).setdefault(each.label, each)
    num_searches = Counter(model for model, _ in tests)
    found, without = [], []
    for (model, _), of_seeds in tests.items():
        first = next(iter(of_seeds.values()))
        name = model if num_searches[model] == 1 else first.name
        scored = [known for each in of_seeds.values() if (known := score(each)) is not None]
        if not scored:
            without.append(name)
            continue
        values, errors = zip(*scored, strict=True)
        found.append(
            Candidate(
                name=name,
                kind=models[model].kind if model in models else first.content["kind"],
                runs=[],
                values=values,
                sampling_error=fmean(errors),
                num_without=len(of_seeds) - len(scored),
            )
        )
    return found, without


def _first_seeds(runs: Iterable[Run]) -> dict[str, Run]:
    """Return the first of the runs that differ from a run in their seed only, by its name."""
    return {run.name: group[0] for group in group_by_seed(runs).values() for run in group}


def _keys(tested: Iterable[EntryResults], models: Mapping[str, Run]) -> list[tuple[str, str]]:
    """Return the model of each test, all seeds of it under one name, and its search but steps."""
    names = {label: first.name for label, first in models.items()}
    return [(names.get(each.label, each.label), digest(each.search_but_steps)) for each in tested]


def best_of_kinds(found: Iterable[Candidate], *, higher_is_better: bool) -> list[Candidate]:
    """Return the best model of each kind by the mean over its seeds, implicit ones first."""
    sign = 1 if higher_is_better else -1
    of_kind = {kind: [each for each in found if each.kind == kind] for kind in KINDS}
    return [max(of, key=lambda each: sign * each.mean) for of in of_kind.values() if of]
