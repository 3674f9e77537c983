"""The configuration of Mamba2, as Hugging Face's."""

from huggingface_hub.dataclasses import strict

from implicit_models.families.registration import registered
from implicit_models.language_models.configuration import ImplicitConfig, check_positive


@registered
@strict
class ImplicitMamba2Config(ImplicitConfig):
    """Mamba2, implicit or (``implicit=False``) explicit.

    Attributes
    ----------
    state_size, expand, head_dim, n_groups, conv_kernel
        Mamba2's sizes, under transformers' names.
    time_step_min, time_step_max
        Time steps that heads begin with are drawn log-uniformly between the two; with larger ones
        states forget sooner.
    allow_neg_eigval
        Whether the states' decays are between -1 and 1, under flash-linear-attention's name.
    chunk_size
        Tokens per chunk of the scan; None lets the kernel choose. It changes speed and rounding
        only.
    """

    family = "mamba2"
    model_type = "implicit_mamba2"

    state_size: int = 128
    expand: int = 2
    head_dim: int = 64
    n_groups: int = 1
    conv_kernel: int = 4
    chunk_size: int | None = None
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    allow_neg_eigval: bool = False

    def validate_architecture(self) -> None:
        """Check that the sizes fit together."""
        self.validate_common()  # first, as these follow from those
        check_positive(self, "state_size", "expand", "head_dim", "n_groups", "conv_kernel")
        if self.chunk_size is not None:
            check_positive(self, "chunk_size")
        if not 0 < self.time_step_min <= self.time_step_max:
            raise ValueError(
                f"time_step_min and time_step_max are {self.time_step_min} and "
                f"{self.time_step_max}; they must be above 0 and in this order"
            )
        inner = self.expand * self.hidden_size
        if inner % self.head_dim:
            raise ValueError(
                f"head_dim is {self.head_dim}; it must divide expand * hidden_size = {inner}"
            )
        if self.num_heads % self.n_groups:
            raise ValueError(
                f"n_groups is {self.n_groups}; it must divide the number of heads, "
                f"expand * hidden_size / head_dim = {self.num_heads}"
            )

    @property
    def num_heads(self) -> int:
        """Heads of the state space."""
        return self.expand * self.hidden_size // self.head_dim
