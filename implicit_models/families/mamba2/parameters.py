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
    """

    family: Literal["mamba2"]
    d_state: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    expand: int = Field(default=2, ge=1)
    num_groups: int = Field(default=1, ge=1)
    conv_kernel: int = Field(default=4, ge=1)
    chunk_length: int | None = Field(default=None, ge=1)

    @property
    def has_state(self) -> bool:
        """Yes: states and the convolutions' tails."""
        return True

    def check(self) -> None:
        """Check that the heads divide the width, and the groups the heads."""
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
