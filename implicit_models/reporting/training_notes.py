"""What a reader of training curves must know: why they move as they do."""

from collections.abc import Sequence

from implicit_models.reporting.matching import is_matched
from implicit_models.reporting.results import RunResults
from implicit_models.reporting.summary import group_by_seed
from implicit_models.reporting.tables.table import said_of_each


def training_notes(runs: Sequence[RunResults]) -> list[str]:
    """Return sentences on phases, lengths, carries, numbers of steps and the cap of a search."""
    phases = []
    if any(run.phase_change is not None for run in runs):
        phases = ["The dotted line marks the change from the bounded phase to the free one."]
    return [*phases, *_growth(runs), *_passing(runs), *_steps(runs), *_caps(runs)]


def iteration_cap(run: RunResults) -> int | None:
    """Return the most self-iterations that training allows, where its curve comes to it."""
    cap, series = run.entry.iteration_cap, run.history.get("self_iterations")
    if cap is None or series is None or not (series.values >= 0.98 * cap).any():
        return None
    return cap


def _growth(runs: Sequence[RunResults]) -> list[str]:
    said = {
        name: f"sequences grow from {start} to {end} tokens over the first {steps:,} steps"
        for name, run in _first_of_groups(runs).items()
        if run.entry.length_growth is not None
        for start, end, steps in [run.entry.length_growth]
    }
    if not said:
        return []
    return [
        f"{_sentence(said)} So the task gets harder while a model learns: that is why the training "
        "accuracy falls, or the loss rises, where it does."
    ]


def _passing(runs: Sequence[RunResults]) -> list[str]:
    said = {
        name: f"{steps:,} training steps go on from what the model remembers of the step before; "
        "it has seen the states of texts longer than its sequences"
        for name, run in _first_of_groups(runs).items()
        if (steps := run.entry.num_passing_steps)
    }
    return [f"{name}: {words}." for name, words in said.items()]


def _steps(runs: Sequence[RunResults]) -> list[str]:
    first, *others = _first_of_groups(runs).values()
    reference = first.num_training_steps
    said = {
        run.name: f"{steps / reference:.3g}x the training steps of {first.name}"
        for run in others
        if (steps := run.num_training_steps) and reference and not is_matched(steps / reference)
    }
    return [f"{name} had {words}." for name, words in said.items()]


def _caps(runs: Sequence[RunResults]) -> list[str]:
    caps = {
        name: f"{cap} self-iterations are the most that training allows: a curve at {cap} is cut "
        "off there, and its searches have not met the tolerance"
        for name, group in group_by_seed(runs).items()
        if (cap := max(filter(None, map(iteration_cap, group)), default=None)) is not None
    }
    return [_sentence(caps)] if caps else []


def _first_of_groups(runs: Sequence[RunResults]) -> dict[str, RunResults]:
    """Return one run of those that differ in their seed only."""
    return {name: group[0] for name, group in group_by_seed(runs).items()}


def _sentence(said: dict[str, str]) -> str:
    sentence = "; ".join(said_of_each(said))
    return f"{sentence[0].upper() if len(set(said.values())) == 1 else sentence[0]}{sentence[1:]}."
