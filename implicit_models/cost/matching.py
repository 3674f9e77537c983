"""Baselines of a run's size: with as many training FLOPs, or with as many parameters."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from implicit_models.cost.flops import configuration_flops, model_flops
from implicit_models.cost.passes import step_flops
from implicit_models.families.building import build, configuration
from implicit_models.families.costs import ModelFlops
from implicit_models.families.family import family_named
from implicit_models.families.parameters import ModelParameters
from implicit_models.families.sizes import count_parameters

Candidates = Callable[[int], ModelParameters]


class MatchError(ValueError):
    """No model or training of the size asked for can be made."""


@dataclass(frozen=True, kw_only=True)
class TrainingMatch:
    """A training with about as many FLOPs as another.

    Attributes
    ----------
    parameters, num_training_steps
        Of the model and of its training; what was not varied is as it was.
    flops
        What that training costs.
    """

    parameters: ModelParameters
    num_training_steps: int
    flops: float


@dataclass(frozen=True, kw_only=True)
class SizeMatch:
    """A model with about as many parameters as another."""

    parameters: ModelParameters
    num_parameters: int


def match_training_flops(
    target_flops: float,
    parameters: ModelParameters,
    vocabulary_size: int,
    *,
    vary: str,
    num_training_steps: int,
    batch_size: int,
    lengths: Iterable[int],
    num_passing: int = 0,
    share_asked: Callable[[int], float] | None = None,
) -> TrainingMatch:
    """Return the explicit training whose FLOPs are nearest to a target.

    Parameters
    ----------
    parameters
        Of the explicit model; all that ``vary`` does not change is kept.
    vary
        ``steps``, the training steps; ``depth``, the layers; or ``width``: d_model, with what goes
        with it, as the family's `of_size` says.
    num_training_steps
        Of the training whose depth or width is varied.
    lengths
        Of the sequences of each training step, or of a sample of the steps: the training is taken
        to have lengths in these proportions.
    num_passing
        How many of the last of these steps pass their carry on, which costs FLOPs of its own.
    share_asked
        Which share of the sequences a step of some length computes; those that pass their carry on
        compute all. None: all.

    Raises
    ------
    MatchError
        Where the model is implicit, so that its FLOPs are not known beforehand, or of a family
        whose shapes are another's; or where the target is no positive number.
    """
    _check(target_flops, parameters, vary, ("steps", "depth", "width"))
    if parameters.implicit:
        raise MatchError(
            "the model is implicit; what its training computes is known only once it is done. "
            "Match an explicit one"
        )
    steps = list(lengths)
    if not steps:
        raise MatchError("there are no lengths; give at least that of one training step")

    kinds = Counter((length, len(steps) - n <= num_passing) for n, length in enumerate(steps))
    shares = {length: 1.0 if share_asked is None else share_asked(length) for length in set(steps)}

    def flops_per_step(chosen: ModelParameters) -> float:
        model = _flops_of(chosen, vocabulary_size)
        total = sum(
            count
            * (1.0 if passes else shares[length])
            * step_flops(model, None, length=length, num_sequences=batch_size, passes_carry=passes)
            for (length, passes), count in kinds.items()
        )
        return total / len(steps)

    if vary == "steps":
        each = flops_per_step(parameters)
        number = max(1, round(target_flops / each))
        return TrainingMatch(parameters=parameters, num_training_steps=number, flops=number * each)
    candidates = _candidates(parameters, vary)
    found = _nearest(target_flops / num_training_steps, candidates, flops_per_step)
    return TrainingMatch(
        parameters=found,
        num_training_steps=num_training_steps,
        flops=num_training_steps * flops_per_step(found),
    )


def match_parameters(
    target: int, parameters: ModelParameters, vocabulary_size: int, *, vary: str
) -> SizeMatch:
    """Return the model, explicit or implicit, whose number of parameters is nearest to a target.

    ``vary`` is ``depth`` or ``width``, as in `match_training_flops`.

    Raises
    ------
    MatchError
        Where the model's shapes are another's, or the target is no positive number.
    """
    _check(target, parameters, vary, ("depth", "width"))

    def size(chosen: ModelParameters) -> int:
        return count_parameters(configuration(chosen, vocabulary_size)).total

    found = _nearest(target, _candidates(parameters, vary), size)
    return SizeMatch(parameters=found, num_parameters=size(found))


def _check(target: float, parameters: ModelParameters, vary: str, allowed: tuple[str, ...]) -> None:
    if vary not in allowed:
        raise MatchError(f"vary is {vary!r}; it must be one of {', '.join(allowed)}")
    if parameters.source is not None and vary != "steps":
        raise MatchError(
            f"vary is {vary!r}; the shapes of a model of family {parameters.family} are those of "
            f"{parameters.source}. Vary steps, or name another source"
        )
    if not (target > 0 and math.isfinite(target)):
        raise MatchError(f"what is to be matched is {target}; it must be positive")


def _flops_of(parameters: ModelParameters, vocabulary_size: int) -> ModelFlops:
    if parameters.source is not None:
        return model_flops(build(parameters, vocabulary_size, seed=0))
    return configuration_flops(configuration(parameters, vocabulary_size))


def _candidates(parameters: ModelParameters, vary: str) -> Candidates:
    """Return the models that come into question, from small to large, by a number from 1 on."""
    family: Any = family_named(parameters.family)
    return lambda number: family.of_size(parameters, vary, number)


def _nearest(
    target: float, candidates: Candidates, size: Callable[[ModelParameters], float]
) -> ModelParameters:
    """Return the candidate of the nearest size; sizes grow with the candidates."""
    high = 1
    while size(candidates(high)) < target:
        high *= 2
    low = high // 2  # the last that is known to be too small, or 0
    while high - low > 1:
        middle = (low + high) // 2
        if size(candidates(middle)) < target:
            low = middle
        else:
            high = middle
    if not low:
        return candidates(high)
    return min(candidates(low), candidates(high), key=lambda each: abs(size(each) - target))
