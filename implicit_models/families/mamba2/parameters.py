"""The parameters of a Mamba2."""

from typing import Literal

from pydantic import Field

from implicit_models.families.parameters import StackParameters
from implicit_models.parameters import ParameterError


class Mamba2Parameters(StackParameters):
    """A Mamba2, explicit or implicit.

    Attributes
    ----------
    d_state, head_dim, expand, num_groups, conv_kernel
        Mamba2's sizes, under their usual names.
    chunk_length
        Tokens per chunk of the scan; null lets the kernel choose. It changes speed and rounding
        only.
    time_step_min, time_step_max
        Between which the heads' time steps begin, drawn log-uniformly, as Mamba2's authors do. A
        state decays by exp(-(1 to 16) * time step) a token: with the usual ones some remember
        thousands of tokens, which training sequences of 20 never show.
    allow_neg_eigval
        Whether a state decays by numbers between -1 and 1, and not between 0 and 1 (Grazzi et
        al. 2025): parity can then be tracked by a linear recurrence. In plain PyTorch, slower.
    """

    family: Literal["mamba2"]
    d_state: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    expand: int = Field(default=2, ge=1)
    num_groups: int = Field(default=1, ge=1)
    conv_kernel: int = Field(default=4, ge=1)
    chunk_length: int | None = Field(default=None, ge=1)
    time_step_min: float = Field(default=0.001, gt=0.0)
    time_step_max: float = Field(default=0.1, gt=0.0)
    allow_neg_eigval: bool = False

    @property
    def has_state(self) -> bool:
        """Yes: states and the convolutions' tails."""
        return True

    def check(self) -> None:
        """Check that the heads divide the width, and the groups the heads, and the time steps."""
        self.check_at_most("time_step_min", "time_step_max")
        d_inner = self.expand * self.d_model
        if d_inner % self.head_dim:
            raise ParameterError(
                f"head_dim is {self.head_dim}; it must divide expand * d_model = {d_inner}"
            )
        if d_inner // self.head_dim % self.num_groups:
            raise ParameterError(
                f"num_groups is {self.num_groups}; it must divide the number of heads, "
                f"expand * d_model / head_dim = {d_inner // self.head_dim}"
            )
