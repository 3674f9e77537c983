"""The parameters of training: sections of the entries of ``runs`` and ``baselines``."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from implicit_models.equilibrium.names import GradientName
from implicit_models.language_models.parameters import SearchParameters
from implicit_models.parameters import ParameterError, Parameters, check_all
from implicit_models.training.sequence_parameters import CarryParameters, LengthParameters


class OptimisationParameters(Parameters):
    """AdamW and its learning rate, for all phases of an entry.

    Attributes
    ----------
    learning_rate
        Peak, reached after ``warmup_steps`` optimiser steps and held until the decay.
    final_learning_rate
        Where the square-root decay at the end arrives.
    beta1, beta2
        Decay of AdamW's two averages.
    warmup_steps
        Steps in which the learning rate rises, counted from an entry's first.
    weight_decay
        Of the matrices of the cell; embeddings, norms, biases and scales have none.
    clip_norm
        Largest norm of the whole gradient.
    batch_size, batch_tokens
        The global batch of a step, whatever the number of processes: in sequences, or in tokens of
        the longest sequences that are trained on. One of the two is given. Of sequences without a
        label, such as strings whose answer is cut off, nothing is computed.
    precision
        Of the activations and of the matrices that multiply them; weights and optimiser are
        float32 in any case.
    max_skipped_steps
        Steps in a row that may be left out because their loss, gradient or search is not finite; at
        one more training stops.
    """

    learning_rate: float = Field(gt=0.0, le=1.0)
    final_learning_rate: float = Field(default=1e-5, ge=0.0, le=1.0)
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    beta2: float = Field(default=0.95, ge=0.0, lt=1.0)
    weight_decay: float = Field(default=0.0, ge=0.0)
    clip_norm: float = Field(gt=0.0)
    batch_size: int | None = Field(default=None, ge=1)
    batch_tokens: int | None = Field(default=None, ge=1)
    warmup_steps: int = Field(ge=0)
    precision: Literal["float32", "bfloat16"] = "float32"
    max_skipped_steps: int = Field(default=10, ge=0)

    def check(self) -> None:
        """Check that there is one batch, and that the learning rate decays downwards."""
        if (self.batch_size is None) == (self.batch_tokens is None):
            found = "neither is given" if self.batch_size is None else "both are given"
            raise ParameterError(
                f"batch_size, batch_tokens: {found}; allowed is one of them, the sequences or the "
                "tokens of a step"
            )
        if self.final_learning_rate > self.learning_rate:
            raise ParameterError(
                f"final_learning_rate is {self.final_learning_rate}; it must be at most "
                f"learning_rate, {self.learning_rate}"
            )

    @property
    def batch_key(self) -> str:
        """The key that says how large a step is."""
        return f"optimisation.batch_{'tokens' if self.batch_size is None else 'size'}"

    def batch(self, length: int) -> str:
        """Return in words how large a step of sequences of ``length`` tokens is, with the key."""
        if self.batch_size is not None:
            return f"{self.batch_key} = {self.batch_size}"
        sequences = self.sequences_a_step(length)
        return f"{self.batch_key} = {self.batch_tokens} ({sequences} sequences of {length} tokens)"

    def sequences_a_step(self, length: int) -> int:
        """Return the global batch in sequences, of which the longest have ``length`` tokens.

        Raises
        ------
        ParameterError
            Where the tokens are not a whole number of them.
        """
        if self.batch_size is not None:
            return self.batch_size
        assert self.batch_tokens is not None
        if self.batch_tokens % length:
            raise ParameterError(
                f"optimisation.batch_tokens = {self.batch_tokens} is not allowed; allowed is a "
                f"multiple of the length of the sequences, {length}"
            )
        return self.batch_tokens // length


class BoundedParameters(CarryParameters):
    """The bounded phase: a few self-iterations from zero, always as many.

    Attributes
    ----------
    num_training_steps
        Of this phase; or null, with ``share`` and ``total_training_steps``.
    share
        The part of all the entry's training steps that this phase has; the free phase has the rest.
    total_training_steps
        How many both phases have together.
    num_self_iterations
        All of them differentiated; with ``phantom_steps`` none.
    phantom_steps
        Self-iterations with gradient that follow: the paper's (4+1) is 4 self-iterations and 1
        phantom step.
    damping
        How far each self-iteration goes towards the cell's value, where there are phantom steps.
    lengths
        How long the training sequences are.
    carry, carry_steps, carry_reset_share, carry_if_right
        As in `CarryParameters`.
    """

    num_training_steps: int | None = Field(default=None, ge=1)
    share: float | None = Field(default=None, gt=0.0, lt=1.0)
    total_training_steps: int | None = Field(default=None, ge=2)
    num_self_iterations: int = Field(ge=1)
    phantom_steps: int | None = Field(default=None, ge=1)
    damping: float | None = Field(default=None, gt=0.0, lt=2.0)
    lengths: LengthParameters

    def check(self) -> None:
        """Check that the steps are given once, and that the lengths arrive."""
        if (self.share is None) != (self.total_training_steps is None) or (
            (self.share is None) == (self.num_training_steps is None)
        ):
            raise ParameterError(
                f"num_training_steps, share, total_training_steps are {self.num_training_steps}, "
                f"{self.share}, {self.total_training_steps}; allowed is either the first, or the "
                "two others"
            )
        if self.phantom_steps is None and self.damping is not None:
            raise ParameterError(
                f"damping = {self.damping} is not allowed; allowed is only null without "
                "phantom_steps"
            )
        check_all(
            lambda: _check_growth(self.lengths, self.steps),
            lambda: self.check_carry(self.lengths, self.steps),
        )

    @property
    def steps(self) -> int:
        """Training steps of this phase."""
        if self.num_training_steps is not None:
            return self.num_training_steps
        assert self.share and self.total_training_steps
        return min(
            max(1, round(self.share * self.total_training_steps)), self.total_training_steps - 1
        )


class FreeParameters(SearchParameters, CarryParameters):
    """The free phase: search to a relative residual, then a gradient there.

    Attributes
    ----------
    num_training_steps
        Of this phase; null where the bounded phase has a share, which leaves the rest.
    damping, tolerance, max_steps, solver, best_so_far
        As in `SearchParameters`; the first three are needed, and the solver is ``picard`` where it
        is left out. The damping is that of the steps with gradient too.
    window, patience
        As there; left out, sequences are searched as a whole, and the patience is 12.
    gradient
        ``phantom``: of ``phantom_steps`` further self-iterations, damped like the search.
        ``unrolled``: of ``unrolled_steps`` further ones without damping, so that damping is 1.
        ``implicit_function``: by a linear solve of the solver's, to the tolerance of the search.
    phantom_steps, unrolled_steps
        Self-iterations that are differentiated, with the gradient of that name.
    jacobian_weight
        Weight, in the loss, of the mean squared entry-wise sensitivity of the cell to its own
        value (Hutchinson's estimate, one sample).
    center_weight
        Weight, in the loss, of how far hidden states of one label are from each other
        (`center_loss`), over the sequences that a process computes at once: how many these are
        changes what is trained. For data whose labels are states, such as word problems; of a text
        the next token is none.
    decay_steps
        Training steps at the end over which the learning rate decays.
    lengths
        How long the training sequences are.
    carry, carry_steps, carry_reset_share, carry_if_right
        As in `CarryParameters`.
    """

    suitable: ClassVar[Mapping[str, Any]] = {"patience": 12}

    num_training_steps: int | None = Field(default=None, ge=1)
    damping: float = Field(gt=0.0, lt=2.0)
    tolerance: float = Field(gt=0.0, lt=1.0)
    max_steps: int = Field(ge=1)
    gradient: GradientName = "phantom"
    phantom_steps: int | None = Field(default=None, ge=1)
    unrolled_steps: int | None = Field(default=None, ge=1)
    jacobian_weight: float = Field(default=0.0, ge=0.0)
    center_weight: float = Field(default=0.0, ge=0.0)
    decay_steps: int = Field(ge=0)
    lengths: LengthParameters

    def check(self) -> None:
        """Check that the gradient has its steps, and that the decay and the lengths fit."""
        super().check()
        if self.patience is not None and self.window is None:
            raise ParameterError(
                f"patience = {self.patience} is not allowed; allowed is only null without a window"
            )
        for gradient in ("phantom", "unrolled"):
            name = f"{gradient}_steps"
            steps = getattr(self, name)
            if self.gradient == gradient and steps is None:
                raise ParameterError(
                    f"{name} is missing; allowed is int, at least 1, with gradient = {gradient!r}"
                )
            if self.gradient != gradient and steps is not None:
                raise ParameterError(
                    f"{name} = {steps} is not allowed; allowed is only null with gradient = "
                    f"{self.gradient!r}"
                )
        if self.gradient == "unrolled" and self.damping != 1.0:
            raise ParameterError(
                f"damping = {self.damping} is not allowed; allowed is 1.0 with gradient = "
                "'unrolled', whose steps are not damped: 'phantom' has damped ones"
            )
        if self.num_training_steps is not None:
            self.check_steps(self.num_training_steps)

    @property
    def gradient_steps(self) -> int | None:
        """Evaluations that are differentiated after the search."""
        return self.unrolled_steps if self.gradient == "unrolled" else self.phantom_steps

    def check_steps(self, num_training_steps: int) -> None:
        """Check that the decay and the growth of lengths fit into so many steps.

        Raises
        ------
        ParameterError
            Naming what does not fit.
        """
        check_all(
            lambda: _check_decay(self.decay_steps, num_training_steps),
            lambda: _check_growth(self.lengths, num_training_steps),
            lambda: self.check_carry(self.lengths, num_training_steps),
        )


class ExplicitParameters(CarryParameters):
    """The only phase of an explicit model; ``carry`` and the like as in `CarryParameters`.

    Attributes
    ----------
    num_training_steps
        Of the training.
    decay_steps
        Training steps at the end over which the learning rate decays.
    lengths
        How long the training sequences are.
    """

    num_training_steps: int = Field(ge=1)
    decay_steps: int = Field(ge=0)
    lengths: LengthParameters

    def check(self) -> None:
        """Check that the decay and the growth of lengths fit."""
        check_all(
            lambda: _check_decay(self.decay_steps, self.num_training_steps),
            lambda: _check_growth(self.lengths, self.num_training_steps),
            lambda: self.check_carry(self.lengths, self.num_training_steps),
        )


class MonitoringParameters(Parameters):
    """What is written down during training, in training steps; the weights do not depend on it.

    Validation happens where something is logged, so ``validate_every`` is a multiple of
    ``log_every``; both happen after the last step too.

    Attributes
    ----------
    log_every, validate_every, checkpoint_every
        Steps from one to the next.
    validation_sequences
        The first so many of the validation split are validated with.
    """

    log_every: int = Field(ge=1)
    validate_every: int = Field(ge=1)
    validation_sequences: int = Field(ge=1)
    checkpoint_every: int = Field(ge=1)

    def check(self) -> None:
        """Check that validation falls on logged steps."""
        if self.validate_every % self.log_every:
            raise ParameterError(
                f"validate_every is {self.validate_every}; it must be a multiple of log_every, "
                f"{self.log_every}"
            )


def _check_growth(lengths: LengthParameters, num_training_steps: int) -> None:
    if lengths.growth_steps > num_training_steps:
        raise ParameterError(
            f"lengths.growth_steps is {lengths.growth_steps}; it must be at most "
            f"num_training_steps, {num_training_steps}: let lengths grow in fewer of the steps, "
            "or take more"
        )


def _check_decay(decay_steps: int, num_training_steps: int) -> None:
    if decay_steps > num_training_steps:
        raise ParameterError(
            f"decay_steps is {decay_steps}; it must be at most num_training_steps, "
            f"{num_training_steps}: let the learning rate fall in fewer of the steps, or take more"
        )
