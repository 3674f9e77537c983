"""The parameters of a Llama."""

from typing import Literal

from pydantic import Field

from implicit_models.families.parameters import StackParameters
from implicit_models.parameters import ParameterError

_ROPE_THETA = 500_000.0


class LlamaParameters(StackParameters):
    """A Llama, explicit or implicit.

    Attributes
    ----------
    num_heads, num_key_value_heads
        Heads of the queries, and of keys and values (as many where not given).
    head_dim
        Width of a head; ``d_model / num_heads`` where it is not given.
    d_feed_forward
        Hidden width of SwiGLU.
    rope
        Whether queries and keys are rotated by their positions; without, a token's position shows
        only in how many stand before it.
    rope_theta
        The base of the rotary embeddings.
    sliding_window
        A token attends to itself and to the tokens before it, so many in all; null: to all of them.
    pad_window
        Whether that is so many at the beginning of a text as well, what is missing being keys and
        values of zero; a token can then tell the beginning from what follows.
    """

    family: Literal["llama"]
    num_heads: int = Field(ge=1)
    d_feed_forward: int = Field(ge=1)
    num_key_value_heads: int | None = Field(default=None, ge=1)
    head_dim: int | None = Field(default=None, ge=1)
    rope: bool = True
    rope_theta: float = Field(default=_ROPE_THETA, gt=0.0)
    sliding_window: int | None = Field(default=None, ge=1)
    pad_window: bool = False

    @property
    def has_state(self) -> bool:
        """Whether there is a window, beyond which nothing is remembered."""
        return self.sliding_window is not None

    def check(self) -> None:
        """Check that the heads divide the width, and their groups the heads."""
        if not self.rope and self.rope_theta != _ROPE_THETA:
            raise ParameterError(
                f"rope_theta = {self.rope_theta} is not allowed; with rope = false there is none: "
                "leave it out"
            )
        if self.pad_window and (self.sliding_window or 1) < 2:
            window = "null" if self.sliding_window is None else self.sliding_window
            raise ParameterError(
                f"pad_window = true is not allowed; sliding_window = {window} leaves nothing to "
                "pad, so only false is, or a window of at least 2"
            )
        if self.head_dim is None and self.d_model % self.num_heads:
            raise ParameterError(
                f"num_heads is {self.num_heads}; it must divide d_model = {self.d_model}, or "
                "head_dim must be given"
            )
        if (head_dim := self.head_dim or self.d_model // self.num_heads) % 2:
            raise ParameterError(
                f"head_dim is {head_dim}; it must be even, for rotary embeddings (without one, "
                "it is d_model / num_heads)"
            )
        if self.num_heads % (self.num_key_value_heads or self.num_heads):
            raise ParameterError(
                f"num_key_value_heads is {self.num_key_value_heads}; it must divide num_heads = "
                f"{self.num_heads}"
            )
