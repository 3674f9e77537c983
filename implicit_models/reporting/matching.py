"""How alike two models are that are compared: size, FLOPs, tokens and steps."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from implicit_models.reporting.results import RunResults
from implicit_models.reporting.tables.table import percent

TOLERANCE = 0.02
"""How far from one a ratio may be that is called matched."""

MATCHED_IN = {"training_flops": "training FLOPs", "parameters": "parameters"}
"""What of a run an entry of ``matched`` may have, in words."""

_QUANTITIES = {
    "training FLOPs": "flops_with_source",
    "parameters": "num_parameters",
    "training tokens": "num_training_tokens",
    "training steps": "num_training_steps",
}


def quantities(runs: Sequence[RunResults], references: Sequence[RunResults]) -> dict[str, float]:
    """Return the ratio of each quantity that is known of all, by its name.

    Parameters
    ----------
    runs, references
        Two models, each with all of its seeds, whose means are compared.
    """
    found = {
        name: [mean_of(seeds, attribute) for seeds in (runs, references)]
        for name, attribute in _QUANTITIES.items()
    }
    return {name: own / other for name, (own, other) in found.items() if own and other}


def mean_of(runs: Sequence[RunResults], attribute: str) -> float | None:
    """Return the mean of what runs have under an attribute; None where one of them lacks it."""
    found = [getattr(run, attribute) for run in runs]
    return None if None in found else fmean(found)


def is_matched(ratio: float) -> bool:
    """Return whether a ratio is close enough to one."""
    return abs(ratio - 1) <= TOLERANCE + 1e-9


def worst_matched(runs: Sequence[RunResults], references: Mapping[str, RunResults]) -> RunResults:
    """Return that of a model's seeds which is least like the run that it was matched to."""

    def distance(run: RunResults) -> float:
        if run.entry.matched_to is None or run.entry.matched_to[0] not in references:
            return 0.0
        found = quantities([run], [references[run.entry.matched_to[0]]])
        return abs(math.log(found.get(MATCHED_IN[run.entry.matched_to[1]], 1.0)))

    return max(runs, key=distance)


def match_sentence(run: RunResults, runs: Mapping[str, RunResults]) -> str | None:
    """Return in what an entry of ``matched`` is like its run, and in what it is not.

    None for other entries, and where the run has no results.
    """
    if run.entry.matched_to is None or run.entry.matched_to[0] not in runs:
        return None
    reference = runs[run.entry.matched_to[0]]
    found = quantities([run], [reference])
    wanted = MATCHED_IN[run.entry.matched_to[1]]
    if wanted not in found:
        return f"{run.name} was matched to {reference.name} in {wanted}, which are not known."
    different = [
        f"{value:.2f}x the {name}"
        for name, value in found.items()
        if name != wanted and not is_matched(value)
    ]
    others = f"it has {', '.join(different)}" if different else "all else is alike too"
    own = f"{found[wanted]:.2f}x"
    if is_matched(found[wanted]):
        return f"{run.name} is matched to {reference.name} in {wanted} ({own}); {others}."
    return (
        f"{run.name} was to have the {wanted} of {reference.name} and has {own} of them: they are "
        f"not matched within {percent(TOLERANCE, 0)}; {others}."
    )
