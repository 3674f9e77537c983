"""What the phases of a training have in common: how long their sequences are, and their carry."""

from typing import Literal

from pydantic import Field

from implicit_models.parameters import ParameterError, Parameters


class LengthParameters(Parameters):
    """How long the training sequences are.

    At each step a length is drawn uniformly between ``minimum`` and a maximum that grows
    linearly from ``start`` to ``end`` over the first ``growth_steps`` of the phase. Sequences
    are cut to it. With all three equal the length is fixed.

    Attributes
    ----------
    minimum
        The shortest, at any step.
    start
        The longest, at the first step of the phase.
    end
        The longest, once it has grown.
    growth_steps
        Steps in which it grows.
    """

    minimum: int = Field(ge=1)
    start: int = Field(ge=1)
    end: int = Field(ge=1)
    growth_steps: int = Field(default=0, ge=0)

    def check(self) -> None:
        """Check their order."""
        if not self.minimum <= self.start <= self.end:
            raise ParameterError(
                f"minimum, start, end are {self.minimum}, {self.start}, {self.end}; "
                "they must not decrease"
            )
        if self.start != self.end and not self.growth_steps:
            raise ParameterError(
                f"growth_steps is 0; to grow from start {self.start} to end {self.end} it must be "
                "1 or more"
            )


class CarryParameters(Parameters):
    """What a step's sequences hand to those that stand in their places in the next step.

    Attributes
    ----------
    carry
        ``reset``: nothing, each sequence begins a text. ``passed``: what the model remembers, and
        what the labels go on from, without gradient (truncated backpropagation through time).
    carry_steps
        The training steps at the end of the phase that pass it; null for all of them.
    carry_reset_share
        The probability with which a sequence begins anew all the same.
    carry_if_right
        Pass only the carries of sequences whose last so many predictions were right; null passes
        all. A state that has lost count makes noise of the labels that go on from it.
    """

    carry: Literal["reset", "passed"] = "reset"
    carry_steps: int | None = Field(default=None, ge=1)
    carry_reset_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    carry_if_right: int | None = Field(default=None, ge=1)

    def num_passing_steps(self, num_training_steps: int) -> int:
        """Return in how many of a phase's steps sequences go on from those before, its last."""
        if self.carry == "reset":
            return 0
        return num_training_steps if self.carry_steps is None else self.carry_steps

    def check_carry(self, lengths: LengthParameters, num_training_steps: int) -> None:
        """Check that what belongs to a carry is there with one alone, and fits.

        Raises
        ------
        ParameterError
            Naming what is not allowed.
        """
        if self.carry == "reset":
            for name, allowed in (
                ("carry_steps", None),
                ("carry_reset_share", 0.0),
                ("carry_if_right", None),
            ):
                if getattr(self, name) != allowed:
                    raise ParameterError(
                        f"{name} = {getattr(self, name)} is not allowed; allowed is only "
                        f"{'null' if allowed is None else allowed} with carry = 'reset'"
                    )
        if self.carry_steps is not None and self.carry_steps > num_training_steps:
            raise ParameterError(
                f"carry_steps is {self.carry_steps}; it must be at most num_training_steps, "
                f"{num_training_steps}"
            )
        if self.carry_if_right is not None and self.carry_if_right > lengths.minimum:
            raise ParameterError(
                f"carry_if_right is {self.carry_if_right}; it must be at most lengths.minimum, "
                f"{lengths.minimum}"
            )
