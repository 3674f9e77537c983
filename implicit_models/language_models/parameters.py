"""The parameters of a model: one section of params.yaml, and its config.json."""

import dataclasses
from dataclasses import dataclass

from implicit_models.parameters import ParameterError, setting, validate

_MAMBA2_WITH_DEFAULT = (
    "expand",
    "num_groups",
    "conv_kernel",
    "weight_normalisation",
    "norm_epsilon",
    "chunk_length",
)


@dataclass(frozen=True, kw_only=True)
class ModelParameters:
    """An implicit or explicit Mamba2, or torch's LSTM.

    Attributes
    ----------
    family
        ``mamba2``, or ``lstm`` (a baseline that is explicit by nature).
    implicit
        Whether the stack is iterated to a fixed point, with the embeddings injected.
    d_model
        Width of the embedding and of the residual stream (for the LSTM: of its embedding).
    hidden_size
        Width of the LSTM's state; the LSTM's alone. Its output is projected to d_model.
    d_state, expand, head_dim, num_groups, conv_kernel
        Mamba2's sizes, under their usual names; Mamba2's alone.
    weight_normalisation
        Learn direction and length of the weights of the cell apart; Mamba2's alone.
    norm_epsilon
        Added to the mean square in every norm; Mamba2's alone.
    chunk_length
        Tokens per chunk of the scan; it changes speed and rounding only; Mamba2's alone.
    embedding_std
        Standard deviation of the initial embeddings.
    """

    family: str = setting(choices=("mamba2", "lstm"))
    implicit: bool = setting(default=False)
    num_layers: int = setting(minimum=1)
    d_model: int = setting(minimum=1)
    hidden_size: int | None = setting(default=None, minimum=1)
    d_state: int | None = setting(default=None, minimum=1)
    expand: int = setting(default=2, minimum=1)
    head_dim: int | None = setting(default=None, minimum=1)
    num_groups: int = setting(default=1, minimum=1)
    conv_kernel: int = setting(default=4, minimum=1)
    weight_normalisation: bool = setting(default=False)
    norm_epsilon: float = setting(default=1e-5, above=0.0, below=1.0)
    chunk_length: int = setting(default=32, minimum=1)
    embedding_std: float = setting(default=0.02, above=0.0)

    def __post_init__(self) -> None:
        """Check each key, and the keys against each other."""
        validate(self)
        own, other = ("d_state", "head_dim"), ("hidden_size",)
        if self.family == "lstm":
            own, other = other, (*own, *_MAMBA2_WITH_DEFAULT)
            if self.implicit:
                raise ParameterError("implicit is true; a model of family lstm can only be false")
        for name in own:
            if getattr(self, name) is None:
                raise ParameterError(f"{name} is missing; a model of family {self.family} needs it")
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in other:
            if getattr(self, name) != defaults[name]:
                raise ParameterError(
                    f"{name} is {getattr(self, name)}; a model of family {self.family} has none"
                )
        if self.head_dim is not None:
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
