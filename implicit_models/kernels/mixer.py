"""All that a Mamba2 block does between its two projections, put together from kernels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.kernels import reference, signed
from implicit_models.kernels.reference import advance_convolution


class MixerWeights(NamedTuple):
    """A mixer's effective weights between its projections; their sizes give all others."""

    convolution: Float[Tensor, "C K"]
    convolution_bias: Float[Tensor, " C"]
    time_step_bias: Float[Tensor, " H"]
    decay_rate: Float[Tensor, " H"]
    skip: Float[Tensor, " H"]
    norm: Float[Tensor, " inner"]


@dataclass(frozen=True)
class MixerSettings:
    """What else a mixer needs to know.

    Attributes
    ----------
    chunk_length
        Tokens per chunk of the scan; None leaves it to the kernel.
    allow_neg_eigval
        Whether decays are between -1 and 1, and not between 0 and 1: see `kernels.signed`.
    """

    num_groups: int
    norm_epsilon: float
    chunk_length: int | None = None
    allow_neg_eigval: bool = False


class Projected(NamedTuple):
    """What a token's projection holds."""

    gate: Float[Tensor, "B L inner"]
    channels: Float[Tensor, "B L C"]
    time_step: Float[Tensor, "B L H"]


def split_projection(
    projected: Float[Tensor, "B L projection"], weights: MixerWeights
) -> Projected:
    """Split a projection into gate, channels (inputs, B and C), time step."""
    sizes = len(weights.norm), len(weights.convolution), len(weights.skip)
    return Projected(*projected.split(sizes, dim=-1))


def maps_of(
    activated: Float[Tensor, "B L C"], weights: MixerWeights, num_groups: int
) -> tuple[Float[Tensor, "B L H P"], Float[Tensor, "B L G N"], Float[Tensor, "B L G N"]]:
    """Take convolved channels apart: inputs, B and C."""
    inner = len(weights.norm)
    size = (activated.shape[-1] - inner) // 2
    inputs, input_map, output_map = activated.split((inner, size, size), dim=-1)
    return (
        inputs.unflatten(-1, (len(weights.skip), -1)),
        input_map.unflatten(-1, (num_groups, -1)),
        output_map.unflatten(-1, (num_groups, -1)),
    )


@dataclass(frozen=True)
class ComposedMixer:
    """The mixer put together from one kernel for each of its steps, as in `reference`.

    Attributes
    ----------
    step
        The kernel for a single token, where there is one.
    advance_state
        Gives the state after some of the tokens.
    """

    convolution: Callable[..., Any]
    scan: Callable[..., Any]
    norm: Callable[..., Any]
    step: Callable[..., Any] | None = None
    advance_state: Callable[..., Any] = reference.advance_state

    def mix(
        self,
        projected: Float[Tensor, "B L projection"],
        weights: MixerWeights,
        settings: MixerSettings,
        tail: Float[Tensor, "B tail C"] | None,
        state: Float[Tensor, "B H P N"] | None,
    ) -> Float[Tensor, "B L inner"]:
        """Mix tokens; ``tail`` and ``state`` are the carry before them, zeros where None."""
        if self.step and projected.shape[1] == 1 and tail is not None and state is not None:
            arguments = (*weights, settings.norm_epsilon, tail, state, settings.num_groups)
            return self.step(projected[:, 0], *arguments)[:, None]
        gate, channels, time_step = split_projection(projected, weights)
        activated = self.convolution(channels, weights.convolution, weights.convolution_bias, tail)
        inputs, input_map, output_map = maps_of(activated, weights, settings.num_groups)
        mixed, _ = self.scan(
            inputs,
            time_step,
            weights.time_step_bias,
            weights.decay_rate,
            input_map,
            output_map,
            weights.skip,
            state,
            chunk_length=settings.chunk_length,
            return_final_state=False,
        )
        norm = (weights.norm, settings.norm_epsilon, settings.num_groups)
        return self.norm(mixed.flatten(2), gate, *norm)

    def advance(
        self,
        projected: Float[Tensor, "B L projection"],
        weights: MixerWeights,
        settings: MixerSettings,
        tail: Float[Tensor, "B tail C"],
        state: Float[Tensor, "B H P N"],
        counts: Int[Tensor, " B"] | None = None,
    ) -> tuple[Float[Tensor, "B tail C"], Float[Tensor, "B H P N"]]:
        """Return the carry after each sequence's first ``counts`` tokens; None means all."""
        _, channels, time_step = split_projection(projected, weights)
        activated = self.convolution(channels, weights.convolution, weights.convolution_bias, tail)
        inputs, input_map, _ = maps_of(activated, weights, settings.num_groups)
        after = self.advance_state(
            inputs,
            time_step,
            weights.time_step_bias,
            weights.decay_rate,
            input_map,
            state,
            counts,
        )
        return advance_convolution(channels, tail, counts), after


REFERENCE_MIXER = ComposedMixer(
    reference.causal_convolution, reference.state_space_scan, reference.gated_rms_norm
)
SIGNED_MIXER = ComposedMixer(
    reference.causal_convolution,
    signed.state_space_scan,
    reference.gated_rms_norm,
    advance_state=signed.advance_state,
)
"""With decays between -1 and 1, on any device."""
