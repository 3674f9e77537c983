"""Mamba2 (Dao & Gu 2024): its blocks, its models, and what they cost."""

import math
from dataclasses import dataclass
from typing import Any

from transformers import GenerationMixin, Mamba2Config, Mamba2ForCausalLM

from implicit_models.backbones.mamba2 import Mamba2Mixer, Mamba2Shape
from implicit_models.backbones.stack import Block
from implicit_models.families.costs import FLOAT32_BYTES, BlockMemory, Work
from implicit_models.families.family import StackFamily, count_weight
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.families.peer import Peer, Rule, Same, common_fields, refuse
from implicit_models.families.registration import register_models
from implicit_models.kernels import signed
from implicit_models.kernels.reference import CHUNK_LENGTH
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.source_names import SourceError
from implicit_models.language_models.trunk import ImplicitModel

# Of the scan in Triton, whose module wants that installed.
TRITON_CHUNK = 64

# What configurations of ours and of transformers call alike.
_SAME_FIELDS = (
    *("state_size", "expand", "head_dim", "n_groups", "conv_kernel"),
    *("time_step_min", "time_step_max"),
)


class ImplicitMamba2Model(ImplicitModel):
    """Mamba2 without a head."""

    config_class = ImplicitMamba2Config

    @staticmethod
    def block(config: ImplicitMamba2Config) -> Block:
        """Build a mixer, with no feed-forward network behind it."""
        mixer = Mamba2Mixer(
            _shape(config),
            num_layers=config.num_hidden_layers,
            normalised_weights=config.weight_normalisation,
            norm_epsilon=config.rms_norm_eps,
            chunk_length=config.chunk_size,
            time_steps=(config.time_step_min, config.time_step_max),
            allow_neg_eigval=config.allow_neg_eigval,
        )
        return Block(mixer, None, config.rms_norm_eps)


class ImplicitMamba2ForCausalLM(ImplicitForCausalLM, GenerationMixin):
    """Mamba2 as a language model.

    | weight | begins as |
    |---|---|
    | in_proj.weight | uniform in +-1/sqrt(d_model) |
    | conv1d.weight, its bias | uniform in +-1/sqrt(conv_kernel) |
    | dt_bias | softplus^-1(a time step log-uniform in [``time_step_min``, ``time_step_max``]) |
    | A_log | log of a decay rate uniform in [1, 16] |
    | D | 1 |
    | out_proj.weight | uniform in +-1/sqrt(d_inner num_layers) |
    | the rest | as in `ImplicitForCausalLM` |
    """

    config_class = ImplicitMamba2Config
    trunk_class = ImplicitMamba2Model


@dataclass(frozen=True, kw_only=True)
class Mamba2Flops:
    """What Mamba2's blocks cost; ``maps`` is the width of B, and of C."""

    num_layers: int
    d_model: int
    d_inner: int
    d_projection: int
    state_size: int
    maps: int
    chunk_length: int

    def evaluation(self, length: int, *, before: float | None = None) -> Work:
        """Return the work of computing some tokens together; see `StackFlops`."""
        weights = 2 * self.d_model * (self.d_projection + self.d_inner) * length
        scan = self._scan(length, before is not None)
        return Work(self.num_layers * weights, self.num_layers * scan)

    def carry(self, length: int) -> float:
        """Return the FLOPs of the states after so many tokens."""
        return self.num_layers * self._states(length)

    def last_products(self, length: int) -> float:
        """Return the FLOPs of the output projections."""
        return 2 * self.num_layers * self.d_inner * self.d_model * length

    def _scan(self, length: int, has_state: bool) -> int:
        if length == 1 and has_state:
            return self._states(1)
        chunk = min(self.chunk_length, length)
        num_chunks = -(-length // chunk)
        tokens = num_chunks * chunk
        work = 2 * tokens * chunk * (self.maps + self.d_inner)
        if num_chunks > 1:
            work += self._states(tokens)  # what each chunk writes
        if num_chunks > 1 or has_state:
            work += self._states(tokens)  # what its tokens read of those before
        return work

    def _states(self, length: int) -> int:
        return 2 * length * self.d_inner * self.state_size


class Mamba2Peer(Peer):
    """transformers' Mamba2."""

    model_class = Mamba2ForCausalLM

    def our_configuration(self, config: Mamba2Config) -> ImplicitMamba2Config:
        """Return the configuration of our explicit model; see `Peer`."""
        refuse(config, use_bias=False, use_conv_bias=True, hidden_act="silu")
        limit = tuple(config.time_step_limit)
        if limit != (0.0, float("inf")):
            raise SourceError(f"time_step_limit is {limit} in the source; ours have (0.0, inf)")
        return ImplicitMamba2Config(
            implicit=False,
            rms_norm_eps=config.layer_norm_epsilon,
            **common_fields(config),
            **{name: getattr(config, name) for name in _SAME_FIELDS},
        )

    def their_configuration(self, config: ImplicitMamba2Config) -> Mamba2Config:
        """Return the configuration of transformers that means the same."""
        if config.allow_neg_eigval:
            raise SourceError("allow_neg_eigval is True; transformers' Mamba2 has only False")
        return Mamba2Config(
            num_heads=config.num_heads,
            layer_norm_epsilon=config.rms_norm_eps,
            **common_fields(config),
            **{name: getattr(config, name) for name in _SAME_FIELDS},
        )

    def rules(self, config: ImplicitMamba2Config) -> list[Rule]:
        """Return which of our weights is which of theirs."""
        rules: list[Rule] = [
            Same("model.embed_tokens.weight", "backbone.embeddings.weight"),
            Same("model.stack.norm", "backbone.norm_f.weight"),
            Same("lm_head.weight", "lm_head.weight"),
        ]
        for layer in range(config.num_hidden_layers):
            ours, theirs = f"model.stack.blocks.{layer}", f"backbone.layers.{layer}"
            mixer, peer = f"{ours}.mixer", f"{theirs}.mixer"
            rules += [
                Same(f"{ours}.norm", f"{theirs}.norm.weight"),
                Same(
                    f"{mixer}.conv1d.weight",
                    f"{peer}.conv1d.weight",
                    their_shape=lambda tensor: tensor[:, None],
                    our_shape=lambda tensor: tensor[:, 0],
                ),
                Same(f"{mixer}.conv1d_bias", f"{peer}.conv1d.bias"),
                Same(f"{mixer}.norm", f"{peer}.norm.weight"),
                *(Same(f"{mixer}.{name}", f"{peer}.{name}") for name in ("dt_bias", "A_log", "D")),
                *(
                    Same(f"{mixer}.{name}.weight", f"{peer}.{name}.weight")
                    for name in ("in_proj", "out_proj")
                ),
            ]
        return rules


class Mamba2Family(StackFamily[ImplicitMamba2Config]):
    """Mamba2, explicit and implicit."""

    model_class = ImplicitMamba2ForCausalLM
    # The decay is raised to powers of the length.
    exact_weights = ("A_log", "dt_bias", "D")
    peers = (Mamba2Peer(),)
    published_sizes = {
        name: {
            "num_hidden_layers": layers,
            "hidden_size": width,
            "state_size": 128,
            "expand": 2,
            "head_dim": 64,
        }
        for name, layers, width in (
            ("130m", 24, 768),
            ("350m", 48, 1024),
            ("760m", 48, 1536),
            ("1.3b", 48, 2048),
        )
    }

    def make_configuration(self, **fields: Any) -> ImplicitMamba2Config:
        """Return a configuration of Mamba2."""
        return ImplicitMamba2Config(**fields)

    def sizes(self, parameters: Any) -> dict[str, Any]:
        """Return Mamba2's own sizes under transformers' names."""
        return {
            "state_size": parameters.d_state,
            "expand": parameters.expand,
            "head_dim": parameters.head_dim,
            "n_groups": parameters.num_groups,
            "conv_kernel": parameters.conv_kernel,
            "chunk_size": parameters.chunk_length,
            "time_step_min": parameters.time_step_min,
            "time_step_max": parameters.time_step_max,
            "allow_neg_eigval": parameters.allow_neg_eigval,
        }

    def of_size(self, parameters: Any, vary: str, number: int) -> Any:
        """Return the parameters with so many layers, or with so many units of heads."""
        if vary == "depth":
            return parameters.replace(num_layers=number)
        unit = parameters.head_dim * parameters.num_groups  # divides expand * d_model
        unit //= math.gcd(unit, parameters.expand)
        return parameters.replace(d_model=number * unit)

    def projection_width(self, config: ImplicitMamba2Config) -> int:
        """Return the width of gate, inputs, B, C and time step."""
        return _shape(config).d_projection

    def count_block(self, config: ImplicitMamba2Config) -> int:
        """Count the parameters of one block."""
        shape, width = _shape(config), config.hidden_size
        channels, inner = shape.d_convolution, shape.d_inner
        block = width + count_weight(config, shape.d_projection, width)
        block += count_weight(config, channels, config.conv_kernel) + channels
        return block + 3 * shape.num_heads + inner + count_weight(config, width, inner)

    def count_unmultiplied(self, config: ImplicitMamba2Config) -> int:
        """Count the weights of the convolutions."""
        return config.num_hidden_layers * _shape(config).d_convolution * config.conv_kernel

    def stack_flops(self, config: ImplicitMamba2Config) -> Mamba2Flops:
        """Return what the blocks cost, in closed form."""
        shape = _shape(config)
        return Mamba2Flops(
            num_layers=config.num_hidden_layers,
            d_model=config.hidden_size,
            d_inner=shape.d_inner,
            d_projection=shape.d_projection,
            state_size=config.state_size,
            maps=config.n_groups * config.state_size,
            chunk_length=config.chunk_size
            or (signed.CHUNK_LENGTH if config.allow_neg_eigval else CHUNK_LENGTH),
        )

    def block_memory(self, config: ImplicitMamba2Config, number_bytes: int) -> BlockMemory:
        """Count a block's bytes, where a number of its activations has so many."""
        shape, width, number = _shape(config), config.hidden_size, number_bytes
        stream = FLOAT32_BYTES * width
        # In turn: projected, convolved, scanned and normed.
        mixer = number * (shape.d_projection + shape.d_convolution + 2 * shape.d_inner)
        norms = FLOAT32_BYTES * (1 + config.n_groups)
        states = number * shape.d_inner * config.state_size // TRITON_CHUNK
        injection = number * shape.d_projection
        return BlockMemory(
            injection=injection,
            kept=stream + number * width + mixer + norms,
            search=2 * stream + number * width + mixer + states,
            # The projection's gradient comes in parts and is joined; states and their gradients,
            # or what flows into the convolution.
            backward=2 * stream
            + 2 * injection
            + mixer
            + max(2 * states, FLOAT32_BYTES * shape.d_convolution),
        )


def _shape(config: ImplicitMamba2Config) -> Mamba2Shape:
    return Mamba2Shape(
        d_model=config.hidden_size,
        d_state=config.state_size,
        expand=config.expand,
        head_dim=config.head_dim,
        num_groups=config.n_groups,
        conv_kernel=config.conv_kernel,
    )


FAMILY = Mamba2Family()
register_models(ImplicitMamba2Config, ImplicitMamba2ForCausalLM, ImplicitMamba2Model)
