"""The configuration of Llama, as Hugging Face's."""

from typing import Any

from huggingface_hub.dataclasses import strict

from implicit_models.families.registration import registered
from implicit_models.language_models.configuration import ImplicitConfig, check_positive

# What transformers reads of a type of rotary embeddings, beside `rope_type` and `rope_theta`, and
# what published configurations have.
_ROPE_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
    "yarn": (
        *("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
        *("original_max_position_embeddings", "truncate", "finetuned"),
    ),
}


@registered
@strict
class ImplicitLlamaConfig(ImplicitConfig):
    """Llama, implicit or (``implicit=False``) explicit.

    Attributes
    ----------
    num_attention_heads, num_key_value_heads
        Heads of the queries, and of keys and values (None: as many), which share them in groups.
    head_dim
        Width of a head; None takes ``hidden_size / num_attention_heads``.
    sliding_window
        A token attends to itself and to the tokens before it, so many in all; None for all of them.
    pad_window
        Whether that is so many at the beginning of a text as well: what is missing are keys and
        values of zero. Otherwise it is not attended to, as in Mistral.
    intermediate_size
        Hidden width of the feed-forward network.
    rope
        Whether queries and keys are rotated by their positions. Without, a token's position shows
        only in how many stand before it.
    rope_parameters
        As transformers': ``rope_theta``, and ``rope_type`` for scaled variants that do not
        depend on the length of the text.
    max_position_embeddings
        The length trained for; nothing here depends on it but scaled rotary embeddings.
    """

    family = "llama"
    model_type = "implicit_llama"

    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    sliding_window: int | None = None
    pad_window: bool = False
    intermediate_size: int = 2048
    max_position_embeddings: int = 2048
    rope: bool = True
    rope_parameters: dict[str, Any] | None = None
    default_theta = 500_000.0

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in what follows from other fields."""
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None and self.num_attention_heads > 0:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"num_attention_heads is {self.num_attention_heads}; it must divide "
                    f"hidden_size = {self.hidden_size}, or head_dim must be given"
                )
            self.head_dim = self.hidden_size // self.num_attention_heads
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Check that the sizes fit together."""
        self.validate_common()  # first, as these follow from those
        counts = ["num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"]
        counts += ["sliding_window"] if self.sliding_window is not None else []
        check_positive(self, *counts, "max_position_embeddings")
        if self.pad_window and (self.sliding_window or 1) < 2:
            raise ValueError(
                f"pad_window is True and sliding_window {self.sliding_window}; there is nothing to "
                "pad, for which the window must be at least 2"
            )
        assert self.num_key_value_heads and self.head_dim
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads is {self.num_key_value_heads}; it must divide "
                f"num_attention_heads = {self.num_attention_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; it must be even")
        rope = self.rope_parameters or {}
        if rope.get("rope_theta", self.default_theta) <= 0.0:
            raise ValueError(f"rope_theta is {rope['rope_theta']}; it must be positive")
        rope_type = rope.get("rope_type", "default")
        if rope_type not in _ROPE_KEYS:
            raise ValueError(
                f"rope_parameters.rope_type is {rope_type!r}; allowed are default, linear, llama3 "
                "and yarn, whose rotations do not depend on the length of the text"
            )
        allowed = {"rope_type", "type", "rope_theta", *_ROPE_KEYS[rope_type]}
        # transformers writes that whole heads are rotated, which is so without it.
        whole = {"partial_rotary_factor"} if rope.get("partial_rotary_factor") == 1.0 else set()
        for key in sorted(rope.keys() - allowed - whole):
            raise ValueError(
                f"rope_parameters has no key {key!r} under rope_type {rope_type!r}; allowed are "
                f"{', '.join(sorted(allowed - {'type'}))}"
            )
