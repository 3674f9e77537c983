"""The Mamba2 mixer: explicit, or implicit through an injection into its input projection."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from implicit_models.backbones.linear import NormalisedWeight, project, set_initial
from implicit_models.kernels import reference
from implicit_models.kernels.dispatch import kernels_for
from implicit_models.kernels.reference import accumulation_dtype


@dataclass(frozen=True)
class Mamba2Shape:
    """The sizes of a Mamba2 mixer."""

    d_model: int
    d_state: int
    expand: int
    head_dim: int
    num_groups: int
    conv_kernel: int

    @property
    def d_inner(self) -> int:
        """Width of the mixer's inside: heads times head width."""
        return self.expand * self.d_model

    @property
    def num_heads(self) -> int:
        """Number of heads."""
        return self.d_inner // self.head_dim

    @property
    def d_convolution(self) -> int:
        """Channels of the convolution: inputs, B and C."""
        return self.d_inner + 2 * self.num_groups * self.d_state

    @property
    def d_projection(self) -> int:
        """Width of the input projection, and of the injection: gate, inputs, B, C, time step."""
        return self.d_inner + self.d_convolution + self.num_heads


class Mamba2Carry(NamedTuple):
    """What a mixer hands from one piece of a sequence to the next."""

    convolution: Float[Tensor, "B K-1 C"]
    state: Float[Tensor, "B H P N"]

    def select(self, rows: Tensor) -> "Mamba2Carry":
        """Give the carry of some of the batch's sequences."""
        return Mamba2Carry(self.convolution[rows], self.state[rows])


class Mamba2Trail(NamedTuple):
    """What an evaluation leaves behind, from which the carry after any of its tokens follows."""

    before: Mamba2Carry
    channels: Float[Tensor, "B L C"]
    inputs: Float[Tensor, "B L H P"]
    time_step: Float[Tensor, "B L H"]
    time_step_bias: Float[Tensor, " H"]
    decay_rate: Float[Tensor, " H"]
    input_map: Float[Tensor, "B L G N"]

    def carry(self, counts: Int[Tensor, " B"] | None = None) -> Mamba2Carry:
        """Give the carry after each sequence's first ``counts`` tokens; None means all."""
        return Mamba2Carry(
            reference.advance_convolution(self.channels, self.before.convolution, counts),
            reference.advance_state(
                self.inputs,
                self.time_step,
                self.time_step_bias,
                self.decay_rate,
                self.input_map,
                self.before.state,
                counts,
            ),
        )


class Mamba2Weights(NamedTuple):
    """A mixer's effective weights, computed once a solve."""

    input: Float[Tensor, "projection D"]
    convolution: Float[Tensor, "C K"]
    output: Float[Tensor, "D inner"]
    decay_rate: Float[Tensor, " H"]


class Mamba2Mixer(nn.Module):
    """Mamba2's token mixer (Dao & Gu 2024): a carry in, a trail to the next one out.

    The state space itself is computed in float32 at least.
    """

    def __init__(
        self,
        shape: Mamba2Shape,
        *,
        num_layers: int,
        normalised_weights: bool,
        norm_epsilon: float,
        chunk_length: int | None,
    ) -> None:
        super().__init__()
        self.shape, self.norm_epsilon, self.chunk_length = shape, norm_epsilon, chunk_length
        self.num_layers = num_layers
        normalised = normalised_weights
        self.in_proj = NormalisedWeight(shape.d_projection, shape.d_model, normalised=normalised)
        self.conv1d = NormalisedWeight(
            shape.d_convolution, shape.conv_kernel, normalised=normalised
        )
        self.conv1d_bias = nn.Parameter(torch.empty(shape.d_convolution))
        self.dt_bias = nn.Parameter(torch.empty(shape.num_heads))
        self.A_log = nn.Parameter(torch.empty(shape.num_heads))
        self.D = nn.Parameter(torch.empty(shape.num_heads))
        self.norm = nn.Parameter(torch.empty(shape.d_inner))
        self.out_proj = NormalisedWeight(shape.d_model, shape.d_inner, normalised=normalised)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial weights, as tabulated in `ImplicitForCausalLM`."""
        shape = self.shape
        self.in_proj.reset(shape.d_model**-0.5)
        bound = shape.conv_kernel**-0.5
        self.conv1d.reset(bound)
        nn.init.uniform_(self.conv1d_bias, -bound, bound)
        time_step = torch.empty_like(self.dt_bias).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        set_initial(self.dt_bias, time_step + torch.log(-torch.expm1(-time_step)))
        set_initial(self.A_log, torch.empty_like(self.A_log).uniform_(1, 16).log())
        nn.init.ones_(self.D)
        nn.init.ones_(self.norm)
        self.out_proj.reset((shape.d_inner * self.num_layers) ** -0.5)

    def weights(self) -> Mamba2Weights:
        """Give the effective weights, for every iteration of a solve."""
        return Mamba2Weights(
            self.in_proj.effective(),
            self.conv1d.effective(),
            self.out_proj.effective(),
            -self.A_log.to(accumulation_dtype(self.A_log.dtype)).exp(),
        )

    def initial_carry(self, batch: int) -> Mamba2Carry:
        """Give the carry of a sequence's start: zeros."""
        shape, like = self.shape, self.D
        return Mamba2Carry(
            like.new_zeros(batch, shape.conv_kernel - 1, shape.d_convolution),
            like.new_zeros(
                (batch, shape.num_heads, shape.head_dim, shape.d_state),
                dtype=accumulation_dtype(like.dtype),
            ),
        )

    def positions(self, carry: Mamba2Carry | None, length: int) -> None:
        """Give what tokens of all blocks share by their positions: nothing."""
        return None

    def forward(
        self,
        hidden: Float[Tensor, "B L D"],
        injection: Float[Tensor, "B L projection"] | None,
        carry: Mamba2Carry | None,
        weights: Mamba2Weights,
        positions: None = None,
    ) -> tuple[Float[Tensor, "B L D"], Mamba2Trail | None]:
        """Mix tokens.

        ``carry`` None means a sequence from its start, whose carry nobody needs: no trail to
        it comes back. The injection is added to the input projection's output.
        """
        shape, kernels = self.shape, kernels_for(hidden.device)
        projected = project(hidden, weights.input, injection)
        gate, channels, time_step = projected.split(
            (shape.d_inner, shape.d_convolution, shape.num_heads), dim=-1
        )
        convolved = kernels.causal_convolution(
            channels,
            weights.convolution,
            self.conv1d_bias,
            None if carry is None else carry.convolution,
        )
        size = shape.num_groups * shape.d_state
        inputs, input_map, output_map = convolved.split((shape.d_inner, size, size), dim=-1)
        inputs = inputs.unflatten(-1, (shape.num_heads, shape.head_dim))
        input_map = input_map.unflatten(-1, (shape.num_groups, shape.d_state))
        mixed, _ = kernels.state_space_scan(
            inputs,
            time_step,
            self.dt_bias,
            weights.decay_rate,
            input_map,
            output_map.unflatten(-1, (shape.num_groups, shape.d_state)),
            self.D,
            None if carry is None else carry.state,
            chunk_length=self.chunk_length,
            return_final_state=False,
        )
        mixed = kernels.gated_rms_norm(
            mixed.flatten(2), gate, self.norm, self.norm_epsilon, shape.num_groups
        )
        outputs = F.linear(mixed, weights.output)
        if carry is None:
            return outputs, None
        trail = Mamba2Trail(
            carry, channels, inputs, time_step, self.dt_bias, weights.decay_rate, input_map
        )
        return outputs, trail
