"""Llama's feed-forward network."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from implicit_models.backbones.linear import NormalisedWeight
from implicit_models.kernels.dispatch import kernels_for
from implicit_models.kernels.linear import linear


class FeedForwardWeights(NamedTuple):
    """Effective weights, computed once a solve."""

    gate: Float[Tensor, "hidden D"]
    up: Float[Tensor, "hidden D"]
    down: Float[Tensor, "D hidden"]


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020): ``down(silu(gate(x)) * up(x))``; gate and up are one projection."""

    def __init__(
        self, d_model: int, d_hidden: int, *, num_layers: int, normalised_weights: bool
    ) -> None:
        super().__init__()
        self.d_model, self.d_hidden, self.num_layers = d_model, d_hidden, num_layers
        normalised = normalised_weights
        self.gate_up_proj = NormalisedWeight(2 * d_hidden, d_model, normalised=normalised)
        self.down_proj = NormalisedWeight(d_model, d_hidden, normalised=normalised)

    def reset_parameters(self) -> None:
        """Draw the initial weights, as tabulated in `ImplicitLlamaForCausalLM`."""
        self.gate_up_proj.reset(self.d_model**-0.5)
        self.down_proj.reset((self.d_hidden * 2 * self.num_layers) ** -0.5)

    def weights(self) -> FeedForwardWeights:
        """Return the effective weights, for every iteration of a solve."""
        gate, up = self.gate_up_proj.effective().chunk(2)
        return FeedForwardWeights(gate, up, self.down_proj.effective())

    def forward(
        self, hidden: Float[Tensor, "B L D"], weights: FeedForwardWeights
    ) -> Float[Tensor, "B L D"]:
        """Apply the network to each token."""
        # Two products: what follows is faster on two contiguous tensors than on halves of one.
        gate, up = linear(hidden, weights.gate), linear(hidden, weights.up)
        gated = kernels_for(hidden.device).swiglu(gate, up)  # nobody else reads the gate
        return linear(gated, weights.down)
