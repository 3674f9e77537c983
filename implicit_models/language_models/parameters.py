"""The parameters of a model: one section of params.yaml."""

import re
from pathlib import Path
from typing import Literal

from pydantic import Field

from implicit_models.parameters import ParameterError, Parameters

# Of each family: the keys it needs, and the keys it may have.
_SIZES = ("num_layers", "d_model")
_CELL = ("implicit", "weight_normalisation", "norm_epsilon", "embedding_std")
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mamba2": (
        (*_SIZES, "d_state", "head_dim"),
        (*_CELL, "expand", "num_groups", "conv_kernel", "chunk_length"),
    ),
    "llama": (
        (*_SIZES, "num_heads", "d_feed_forward"),
        (*_CELL, "num_key_value_heads", "head_dim", "rope_theta"),
    ),
    "lstm": ((*_SIZES, "hidden_size"), ("embedding_std",)),
    "upcycled": (("source",), ("implicit",)),
    "huggingface": (("source",), ("pretrained",)),
}


def is_folder(source: str) -> bool:
    """Return whether a model's source is a folder that is there."""
    return source != "" and Path(source).is_dir()


def is_hub_id(source: str) -> bool:
    """Return whether a model's source can be a hub id, NAME or OWNER/NAME, and no folder.

    Where OWNER is a folder here, OWNER/NAME is taken for one in it, be it there or not.
    """
    owner, slash, _ = source.partition("/")
    if is_folder(source) or (slash and Path(owner).is_dir()):
        return False
    return re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*", source) is not None


class ModelParameters(Parameters):
    """An implicit or explicit Mamba2 or Llama, or a model to compare them with.

    Attributes
    ----------
    family
        ``mamba2`` or ``llama``; ``upcycled``, an implicit model made of an explicit checkpoint;
        ``lstm``, torch's; ``huggingface``, any causal language model of transformers. The last
        two are explicit by nature.
    implicit
        Whether the stack is iterated to a fixed point, with the embeddings injected.
    source
        Of ``upcycled`` the checkpoint's folder or hub id; of ``huggingface`` a folder with a
        configuration, or a hub id.
    pretrained
        Whether to start from the source's weights, not only from its configuration; of
        ``huggingface`` alone.
    d_model
        Width of the embedding and of the residual stream (for the LSTM: of its embedding).
    hidden_size
        Width of the LSTM's state; the LSTM's alone. Its output is projected to d_model.
    d_state, expand, num_groups, conv_kernel
        Mamba2's sizes, under their usual names; Mamba2's alone.
    head_dim
        Width of a head; Llama takes ``d_model / num_heads`` where it is not given.
    num_heads, num_key_value_heads, d_feed_forward, rope_theta
        Llama's sizes: heads of the queries, and of keys and values (as many where not given),
        hidden width of SwiGLU, and the base of the rotary embeddings; Llama's alone.
    weight_normalisation
        Learn direction and length of the weights of the cell apart.
    norm_epsilon
        Added to the mean square in every norm.
    chunk_length
        Tokens per chunk of the scan; null lets the kernel choose. It changes speed and rounding
        only; Mamba2's alone.
    embedding_std
        Standard deviation of the initial embeddings.
    """

    family: Literal["mamba2", "llama", "lstm", "upcycled", "huggingface"]
    implicit: bool = False
    source: str | None = None
    pretrained: bool = False
    num_layers: int | None = Field(default=None, ge=1)
    d_model: int | None = Field(default=None, ge=1)
    hidden_size: int | None = Field(default=None, ge=1)
    d_state: int | None = Field(default=None, ge=1)
    expand: int = Field(default=2, ge=1)
    head_dim: int | None = Field(default=None, ge=1)
    num_groups: int = Field(default=1, ge=1)
    conv_kernel: int = Field(default=4, ge=1)
    num_heads: int | None = Field(default=None, ge=1)
    num_key_value_heads: int | None = Field(default=None, ge=1)
    d_feed_forward: int | None = Field(default=None, ge=1)
    rope_theta: float = Field(default=500_000.0, gt=0.0)
    weight_normalisation: bool = False
    norm_epsilon: float = Field(default=1e-5, gt=0.0, lt=1.0)
    chunk_length: int | None = Field(default=None, ge=1)
    embedding_std: float = Field(default=0.02, gt=0.0)

    def check(self) -> None:
        """Check the keys against each other."""
        needed, allowed = _KEYS[self.family]
        if self.implicit and "implicit" not in allowed:
            raise ParameterError(
                f"implicit is true; a model of family {self.family} can only be false"
            )
        if self.family == "upcycled" and not self.implicit:
            raise ParameterError("implicit is false; a model of family upcycled can only be true")
        for name in needed:
            if getattr(self, name) is None:
                raise ParameterError(f"{name} is missing; a model of family {self.family} needs it")
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name not in ("family", *needed, *allowed) and value != field.default:
                raise ParameterError(f"{name} is {value}; a model of family {self.family} has none")
        if self.family == "mamba2":
            self._check_mamba2()
        if self.family == "llama":
            self._check_llama()

    @property
    def weights_source(self) -> str | None:
        """Folder or hub id whose weights the training begins from; None for none.

        A model of family ``huggingface`` that is not pretrained takes but its configuration.
        """
        return None if self.family == "huggingface" and not self.pretrained else self.source

    def _check_mamba2(self) -> None:
        assert self.d_model and self.head_dim
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

    def _check_llama(self) -> None:
        assert self.d_model and self.num_heads
        if self.head_dim is None and self.d_model % self.num_heads:
            raise ParameterError(
                f"num_heads is {self.num_heads}; it must divide d_model = {self.d_model}, or "
                "head_dim must be given"
            )
        if (self.head_dim or self.d_model // self.num_heads) % 2:
            raise ParameterError("head_dim is odd; rotary embeddings need an even one")
        if self.num_heads % (self.num_key_value_heads or self.num_heads):
            raise ParameterError(
                f"num_key_value_heads is {self.num_key_value_heads}; it must divide num_heads = "
                f"{self.num_heads}"
            )
