"""The Mamba2 mixer: explicit, or implicit through an injection into its input projection."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from implicit_models.backbones.linear import NormalisedWeight, set_initial
from implicit_models.kernels.dispatch import kernels_for
from implicit_models.kernels.linear import linear
from implicit_models.kernels.mixer import SIGNED_MIXER, MixerSettings, MixerWeights
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

    convolution: Float[Tensor, "B tail C"]
    state: Float[Tensor, "B H P N"]

    @property
    def by_sequence(self) -> Float[Tensor, "B H P N"]:
        """The states."""
        return self.state

    def select(self, rows: Tensor) -> "Mamba2Carry":
        """Return the carry of some of the batch's sequences."""
        return Mamba2Carry(self.convolution[rows], self.state[rows])


class Mamba2Weights(NamedTuple):
    """A mixer's effective weights, computed once a solve."""

    input: Float[Tensor, "projection D"]
    output: Float[Tensor, "D inner"]
    between: MixerWeights


class Mamba2Trail(NamedTuple):
    """What an evaluation leaves behind, from which the carry after any of its tokens follows."""

    before: Mamba2Carry
    projected: Float[Tensor, "B L projection"]
    weights: MixerWeights
    settings: MixerSettings

    def carry(self, counts: Int[Tensor, " B"] | None = None) -> Mamba2Carry:
        """Return the carry after each sequence's first ``counts`` tokens; None means all."""
        advance = _mixer_of(self.settings, self.projected.device).advance
        return Mamba2Carry(
            *advance(self.projected, self.weights, self.settings, *self.before, counts)
        )


class Mamba2Mixer(nn.Module):
    """Mamba2's token mixer (Dao & Gu 2024): a carry in, a trail to the next one out.

    What it does between its projections is a kernel's affair; the state is float32 at least.
    """

    def __init__(
        self,
        shape: Mamba2Shape,
        *,
        num_layers: int,
        normalised_weights: bool,
        norm_epsilon: float,
        chunk_length: int | None,
        time_steps: tuple[float, float] = (0.001, 0.1),
        allow_neg_eigval: bool = False,
    ) -> None:
        super().__init__()
        self.shape, self.num_layers, self.time_steps = shape, num_layers, time_steps
        self.settings = MixerSettings(
            shape.num_groups, norm_epsilon, chunk_length, allow_neg_eigval
        )
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
        """Draw the initial weights, as tabulated in `ImplicitMamba2ForCausalLM`."""
        shape = self.shape
        self.in_proj.reset(shape.d_model**-0.5)
        bound = shape.conv_kernel**-0.5
        self.conv1d.reset(bound)
        nn.init.uniform_(self.conv1d_bias, -bound, bound)
        time_step = torch.empty_like(self.dt_bias).uniform_(*map(math.log, self.time_steps)).exp()
        set_initial(self.dt_bias, time_step + torch.log(-torch.expm1(-time_step)))
        set_initial(self.A_log, torch.empty_like(self.A_log).uniform_(1, 16).log())
        nn.init.ones_(self.D)
        nn.init.ones_(self.norm)
        self.out_proj.reset((shape.d_inner * self.num_layers) ** -0.5)

    def weights(self) -> Mamba2Weights:
        """Return the effective weights, for every iteration of a solve."""
        between = MixerWeights(
            self.conv1d.effective(),
            self.conv1d_bias,
            self.dt_bias,
            -self.A_log.to(accumulation_dtype(self.A_log.dtype)).exp(),
            self.D,
            self.norm,
        )
        return Mamba2Weights(self.in_proj.effective(), self.out_proj.effective(), between)

    def initial_carry(self, batch: int) -> Mamba2Carry:
        """Return the carry at the start of a sequence: zeros."""
        shape, dtype, device = self.shape, self.D.dtype, self.D.device
        states = (batch, shape.num_heads, shape.head_dim, shape.d_state)
        return Mamba2Carry(
            torch.zeros(
                batch, shape.conv_kernel - 1, shape.d_convolution, dtype=dtype, device=device
            ),
            torch.zeros(states, dtype=accumulation_dtype(dtype), device=device),
        )

    def positions(self, carry: Mamba2Carry | None, length: int) -> None:
        """Return what all blocks need to know of the tokens' positions: nothing."""
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
        mixer, between = _mixer_of(self.settings, hidden.device), weights.between
        projected = linear(hidden, weights.input, injection)
        if carry is not None:  # of a model that computes in another precision than it is kept in
            carry = carry._replace(convolution=carry.convolution.to(projected.dtype))
        before = (None, None) if carry is None else carry
        mixed = mixer.mix(projected, between, self.settings, *before)
        outputs = linear(mixed, weights.output)
        if carry is None:
            return outputs, None
        return outputs, Mamba2Trail(carry, projected, between, self.settings)


def _mixer_of(settings: MixerSettings, device: torch.device) -> Any:
    """Return what has the `mix` and `advance` of a mixer's kernels."""
    return SIGNED_MIXER if settings.allow_neg_eigval else kernels_for(device)
