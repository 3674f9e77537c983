"""The curriculum: what a training step does, as a pure function of its number."""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool

from implicit_models.equilibrium.jacobian import JacobianPenalty
from implicit_models.equilibrium.phase import Phase, bounded_phase
from implicit_models.language_models.phases import search_settings
from implicit_models.training.parameters import (
    BoundedParameters,
    ExplicitParameters,
    FreeParameters,
    OptimisationParameters,
)
from implicit_models.training.sequence_parameters import CarryParameters, LengthParameters

_RESETS = 2**32  # keeps the stream of random numbers apart from those of lengths and penalties


@dataclass(frozen=True)
class Passing:
    """How the last steps of a segment pass their carries on.

    Attributes
    ----------
    num_steps
        How many steps they are.
    reset_share, if_right
        As ``carry_reset_share`` and ``carry_if_right`` of `CarryParameters`.
    """

    num_steps: int
    reset_share: float
    if_right: int | None

    @classmethod
    def of(cls, parameters: CarryParameters, num_steps: int) -> "Passing | None":
        """Return what a phase of so many steps asks for; None where it passes nothing on."""
        num_passing = parameters.num_passing_steps(num_steps)
        if not num_passing:
            return None
        return cls(num_passing, parameters.carry_reset_share, parameters.carry_if_right)


@dataclass(frozen=True)
class Segment:
    """A stretch of training steps that share a phase.

    Steps count through a whole entry: a free segment starts where its bounded one ended, which
    is all that tells an interrupted or continued training from an uninterrupted one.
    """

    name: str
    first_step: int
    num_steps: int
    phase: Phase | None
    lengths: LengthParameters
    decay_steps: int
    passing: Passing | None = None
    center_weight: float = 0.0

    @property
    def last_step(self) -> int:
        """The number of steps done when the segment ends."""
        return self.first_step + self.num_steps

    def phase_at(self, step: int, seed: int, first: int = 0) -> Phase | None:
        """Return a step's phase: the segment's, with the random signs of its penalty drawn anew.

        Parameters
        ----------
        first
            Place in the global batch of the first sequence that it is for.
        """
        if self.phase is None or self.phase.penalty is None:
            return self.phase
        key = (seed, step, first) if first else (seed, step)
        drawn = int(np.random.default_rng(key).integers(2**63))
        return replace(self.phase, penalty=replace(self.phase.penalty, seed=drawn))

    def length_at(self, step: int, seed: int) -> int:
        """Return the length that a step's sequences are cut to."""
        lengths = self.lengths
        done = 1.0
        if lengths.growth_steps:
            done = min(1.0, (step - self.first_step) / lengths.growth_steps)
        longest = lengths.start + math.floor((lengths.end - lengths.start) * done)
        if longest == lengths.minimum:
            return longest
        drawn = np.random.default_rng((seed, step)).integers(lengths.minimum, longest + 1)
        return int(drawn)

    @property
    def num_passing(self) -> int:
        """How many of its last steps pass their carry on."""
        return 0 if self.passing is None else self.passing.num_steps

    def passing_at(self, step: int) -> Passing | None:
        """Return how a step's sequences go on from those of the step before; None: they do not."""
        if self.passing is None or step < self.last_step - self.passing.num_steps:
            return None
        return self.passing

    def begins_at(self, step: int, seed: int, batch_size: int) -> Bool[np.ndarray, " B"]:
        """Return which places of a step's batch begin anew, whatever was passed on to them."""
        if self.passing is None or not self.passing.reset_share:
            return np.zeros(batch_size, dtype=bool)
        drawn = np.random.default_rng((seed, step, _RESETS)).random(batch_size)
        return drawn < self.passing.reset_share

    def learning_rate_at(self, step: int, optimisation: OptimisationParameters) -> float:
        """Return a step's learning rate: linear warm-up, constant, square-root decay."""
        peak, final = optimisation.learning_rate, optimisation.final_learning_rate
        if step < optimisation.warmup_steps:
            return peak * (step + 1) / optimisation.warmup_steps
        into_decay = step + 1 - (self.last_step - self.decay_steps)
        if into_decay <= 0:
            return peak
        return final + (peak - final) * (1.0 - math.sqrt(into_decay / self.decay_steps))


def bounded_segment(parameters: BoundedParameters) -> Segment:
    """Return the bounded phase of an implicit model's training."""
    phase = bounded_phase(
        parameters.num_self_iterations,
        parameters.phantom_steps,
        1.0 if parameters.damping is None else parameters.damping,
    )
    return Segment(
        "bounded",
        0,
        parameters.steps,
        phase,
        parameters.lengths,
        decay_steps=0,
        passing=Passing.of(parameters, parameters.steps),
    )


def free_segment(
    parameters: FreeParameters, first_step: int, num_steps: int | None = None
) -> Segment:
    """Return the free phase, which goes on after ``first_step`` bounded steps.

    Parameters
    ----------
    num_steps
        In place of the parameters' own number, which they may leave open.
    """
    num_steps = parameters.num_training_steps if num_steps is None else num_steps
    assert num_steps is not None
    penalty = JacobianPenalty(parameters.jacobian_weight) if parameters.jacobian_weight else None
    search = search_settings(parameters)
    phase = search.phase(parameters.gradient, parameters.gradient_steps, penalty)
    return Segment(
        "free",
        first_step,
        num_steps,
        phase,
        parameters.lengths,
        parameters.decay_steps,
        Passing.of(parameters, num_steps),
        parameters.center_weight,
    )


def explicit_segment(parameters: ExplicitParameters) -> Segment:
    """Return the training of an explicit model, which has no phase."""
    return Segment(
        "explicit",
        0,
        parameters.num_training_steps,
        None,
        parameters.lengths,
        parameters.decay_steps,
        Passing.of(parameters, parameters.num_training_steps),
    )
