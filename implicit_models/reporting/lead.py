"""The report's lead: what was compared, what came out and at what cost, in words."""

from collections.abc import Callable, Mapping, Sequence

from implicit_models.reporting.comparison import KINDS, Candidate
from implicit_models.reporting.matching import (
    is_matched,
    match_sentence,
    mean_of,
    quantities,
    worst_matched,
)
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.summary import group_by_seed
from implicit_models.reporting.tables.table import number, percent, scientific

ABOUT_THE_SAME = 1.3
"""Times whose ratio is no more than this are about the same: as much lies in the machine's load."""

LONG_ENOUGH = 60.0
"""Seconds from which on times of trainings compare: shorter ones are the machine's load, mostly."""

_ALWAYS = ("training FLOPs", "parameters")


def compared(runs: Sequence[RunResults]) -> str:
    """Return how many models there are of each kind: ``2 explicit models and 1 recurrent one``."""
    groups = list(group_by_seed(runs).values())
    parts = []
    for kind in KINDS:
        of_kind = [group for group in groups if group[0].kind == kind]
        if of_kind:
            noun = ("one" if parts else "model") + ("s" if len(of_kind) > 1 else "")
            counts = {len(group) for group in of_kind}
            seeds = f"{'up to ' * (len(counts) > 1)}{max(counts)} seeds"
            parts.append(f"{len(of_kind)} {kind} {noun}" + f" ({seeds})" * (max(counts) > 1))
    return listed(parts)


def outcome(
    best: Sequence[Candidate],
    shown: Callable[[Candidate], str],
    *,
    higher_is_better: bool,
) -> str:
    """Return a sentence without its full stop: how the best model of each kind does.

    Parameters
    ----------
    best
        What `best_of_kinds` gives: at least one.
    shown
        Writes a model's score.
    """

    def stands(each: Candidate) -> str:
        return f"{each.name} ({each.kind}) has {shown(each)}"

    first, *others = best
    if first.kind != "implicit":
        none = "no implicit model has a score here"
        return f"{none}: {'; '.join(map(stands, best))}"
    if not others:
        return f"{stands(first)}; there is no other kind of model here to compare it with"
    verdicts: dict[str, list[str]] = {}
    for other in others:
        verdict = _verdict(first, other, higher_is_better)
        verdicts.setdefault(verdict, []).append(f"{other.name} ({other.kind}, {shown(other)})")
    told = (f"{verdict} {listed(rivals)}" for verdict, rivals in verdicts.items())
    return f"{stands(first)}; it {listed(list(told))}"


def share_shown(each: Candidate, score: str, place: str | int | None = None) -> str:
    """Write a share, and whether it is no better than chance, which its runs' evaluations tell.

    Parameters
    ----------
    score, place
        What it is, and at which length or of which split, as in `RunResults.chance_of`.
    """
    chance = each.runs[0].chance_of(score, place)
    # Of several seeds one more often lies far off by chance; one that has learned lies farther.
    most = (2 if len(each.values) == 1 else 3) * each.sampling_error
    is_chance = all(value - chance <= most for value in each.values)
    return each.written(percent) + (", no better than chance" if is_chance else "")


def _verdict(first: Candidate, other: Candidate, higher_is_better: bool) -> str:
    if first.is_level_with(other):
        return "is level with"
    return "is ahead of" if (first.mean > other.mean) == higher_is_better else "loses to"


def noise_sentence(best: Sequence[Candidate]) -> str:
    """Return what a difference between these models has to be to be told."""
    of_data = "two standard errors of the test data"
    alone = [each.name for each in best if len(each.values) == 1]
    caveat = "with one seed, and another may end elsewhere"
    if len(alone) == len(best):
        return f"Level is what lies within {of_data}; each model was trained {caveat}."
    level = (
        f"Level is what lies within the 95 % interval of the difference: by {of_data}, and by "
        "Student's t of the seeds"
    )
    if alone:
        return f"{level}; {listed(alone)} {'were' if len(alone) > 1 else 'was'} trained {caveat}."
    return f"{level}."


def cost_sentences(best: Sequence[Candidate], runs: Sequence[RunResults]) -> list[str]:
    """Return what the best model of each kind has cost, against the first of them.

    Parameters
    ----------
    runs
        Those that baselines among the best may be matched to.
    """
    first, *others = [each for each in best if each.runs]
    own = [f"{number(mean_of(first.runs, 'train_seconds'))} s"]
    if (flops := mean_of(first.runs, "flops_with_source")) is not None:
        own.append(f"{scientific(flops)} FLOPs")
    of_seeds = f" (mean of {len(first.runs)} seeds)" if len(first.runs) > 1 else ""
    sentence = f"Training {first.name} took {' and '.join(own)}{of_seeds}"
    sentences = ["; ".join([sentence, *(_against(each, first) for each in others)]) + "."]
    references = {run.name: run for run in runs}
    matched = (match_sentence(worst_matched(each.runs, references), references) for each in others)
    return [*sentences, *filter(None, matched)]


def _against(other: Candidate, first: Candidate) -> str:
    seconds, reference = mean_of(other.runs, "train_seconds"), mean_of(first.runs, "train_seconds")
    parts = [_time(seconds, reference)]
    for quantity, value in quantities(other.runs, first.runs).items():
        if quantity in _ALWAYS:
            parts.append(f"{value:.2f}x the {quantity}")
        elif quantity == "training steps" and not is_matched(value):
            parts.append(f"{factor(value)} the {quantity}")
    return f"{other.name} took {', '.join(parts)}"


def _time(seconds: float | None, reference: float | None) -> str:
    if not seconds or not reference or min(seconds, reference) < LONG_ENOUGH:
        return f"{number(seconds)} s"
    share = seconds / reference
    if 1 / ABOUT_THE_SAME <= share <= ABOUT_THE_SAME:
        return f"about the same time ({number(seconds)} s)"
    return f"{number(seconds)} s ({factor(share)})"


def factor(value: float) -> str:
    """Return a ratio in words' length: ``3x``, ``0.36x``."""
    return f"{value:.2f}x" if value < 10 and round(value, 2) != round(value) else f"{value:,.0f}x"


def unfinished_sentence(missing: Mapping[str, str], total: int) -> str:
    """Return which entries have no results yet, and the commands that make them."""
    each = ", ".join(f"{name} (`{command}`)" for name, command in missing.items())
    return (
        f"Unfinished: {len(missing)} of {total} entries have no results yet, and stand in no "
        f"figure and no table: {each}."
    )


def listed(parts: Sequence[str]) -> str:
    """Return words with commas and an ``and`` between them."""
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last
