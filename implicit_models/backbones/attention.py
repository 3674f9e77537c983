"""Causal self-attention as Llama's, explicit, or implicit through an injection into q, k, v."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from implicit_models.backbones.key_value import KeyValueCarry
from implicit_models.backbones.linear import NormalisedWeight
from implicit_models.backbones.rotary import Rotary
from implicit_models.kernels.dispatch import kernels_for
from implicit_models.kernels.linear import linear
from implicit_models.kernels.reference import rotate


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of an attention mixer."""

    d_model: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int

    @property
    def d_inner(self) -> int:
        """Width of all queries."""
        return self.num_heads * self.head_dim

    @property
    def d_keys(self) -> int:
        """Width of all keys, and of all values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def d_projection(self) -> int:
        """Width of the input projection, and of the injection: queries, keys, values."""
        return self.d_inner + 2 * self.d_keys


class AttentionWeights(NamedTuple):
    """A mixer's effective weights, computed once a solve."""

    queries: Float[Tensor, "inner D"]
    keys: Float[Tensor, "kv D"]
    values: Float[Tensor, "kv D"]
    output: Float[Tensor, "D inner"]


@dataclass(frozen=True)
class AttentionPositions:
    """Where tokens stand, the same for all blocks of a stack; computed once a cell.

    Attributes
    ----------
    cosine, sine
        The tokens' rotations.
    mask
        Which key (S of the carry and the tokens) each token attends to; None where ``is_causal``
        says all, or where all tokens attend to all keys.
    """

    cosine: Float[Tensor, "#B L 1 P"]
    sine: Float[Tensor, "#B L 1 P"]
    mask: Bool[Tensor, "#B 1 L S"] | None
    is_causal: bool


class AttentionMixer(nn.Module):
    """Attention with rotary positions and grouped queries (Touvron et al. 2023).

    Whole texts go through a kernel, pieces of them through torch's attention. Queries, keys and
    values come from one projection, and the injection is as wide as the three together.
    """

    def __init__(
        self, shape: AttentionShape, rotary: Rotary, *, num_layers: int, normalised_weights: bool
    ) -> None:
        super().__init__()
        self.shape, self.rotary, self.num_layers = shape, rotary, num_layers
        normalised = normalised_weights
        self.qkv_proj = NormalisedWeight(shape.d_projection, shape.d_model, normalised=normalised)
        self.out_proj = NormalisedWeight(shape.d_model, shape.d_inner, normalised=normalised)

    @property
    def _widths(self) -> tuple[int, int, int]:
        """Rows of the projection that give queries, keys and values."""
        return self.shape.d_inner, self.shape.d_keys, self.shape.d_keys

    def reset_parameters(self) -> None:
        """Draw the initial weights, as tabulated in `ImplicitLlamaForCausalLM`."""
        self.qkv_proj.reset(self.shape.d_model**-0.5)
        self.out_proj.reset((self.shape.d_inner * 2 * self.num_layers) ** -0.5)

    def weights(self) -> AttentionWeights:
        """Return the effective weights, for every iteration of a solve."""
        queries, keys, values = self.qkv_proj.effective().split(self._widths)
        return AttentionWeights(queries, keys, values, self.out_proj.effective())

    def initial_carry(self, batch: int) -> Any:
        """Return the carry at the start of a sequence: no key, no value."""
        size = (batch, self.shape.num_key_value_heads, 0, self.shape.head_dim)
        like = self.qkv_proj.weight
        return KeyValueCarry.of(like.new_empty(size), like.new_empty(size))

    def positions(self, carry: Any, length: int) -> Any:
        """Place the next ``length`` tokens of each sequence."""
        like = self.qkv_proj.weight
        if carry is None or (carry.is_uniform and carry.reach == 0):
            tokens = torch.arange(length, device=like.device)[None]
            return AttentionPositions(*self.rotary.angles(tokens, like.dtype), None, length > 1)
        slots = carry.slots(length)
        cosine, sine = self.rotary.angles(slots, like.dtype)
        if carry.is_uniform and length == 1:
            return AttentionPositions(cosine, sine, None, False)
        keys = torch.arange(carry.reach + length, device=slots.device)
        return AttentionPositions(cosine, sine, (keys <= slots[..., None])[:, None], False)

    def forward(
        self,
        hidden: Float[Tensor, "B L D"],
        injection: Float[Tensor, "B L projection"] | None,
        carry: Any,
        weights: AttentionWeights,
        positions: Any,
    ) -> tuple[Float[Tensor, "B L D"], Any]:
        """Mix tokens; see `Mamba2Mixer.forward`."""
        shape = self.shape
        parts = (None,) * 3 if injection is None else injection.split(self._widths, dim=-1)
        # Three products: what is done with each is faster on a tensor of its own.
        heads = (*hidden.shape[:2], shape.num_heads, shape.head_dim)
        fewer_heads = (*hidden.shape[:2], shape.num_key_value_heads, shape.head_dim)
        queries = linear(hidden, weights.queries, parts[0]).view(heads)
        keys = linear(hidden, weights.keys, parts[1]).view(fewer_heads)
        values = linear(hidden, weights.values, parts[2]).view(fewer_heads)
        mixed, trail = self._attend(queries, keys, values, carry, positions)
        return linear(mixed.flatten(2), weights.output), trail

    def _attend(
        self,
        queries: Float[Tensor, "B L H P"],
        keys: Float[Tensor, "B L G P"],
        values: Float[Tensor, "B L G P"],
        carry: KeyValueCarry | None,
        positions: AttentionPositions,
    ) -> tuple[Float[Tensor, "B L H P"], Any]:
        """Attend to the tokens and to what the carry holds."""
        cosine, sine = positions.cosine.to(keys.dtype), positions.sine.to(keys.dtype)
        if carry is None:
            attend = kernels_for(queries.device).causal_attention
            return attend(queries, keys, values, cosine, sine), None
        queries, keys = rotate(queries, cosine, sine), rotate(keys, cosine, sine)
        keys, values, trail = carry.with_tokens(keys, values)
        mixed = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys,
            values,
            positions.mask,
            is_causal=positions.is_causal,
            enable_gqa=self.shape.num_key_value_heads != self.shape.num_heads,
        )
        return mixed.transpose(1, 2), trail
