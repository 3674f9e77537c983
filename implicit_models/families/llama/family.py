"""Llama (Touvron et al. 2023): its blocks, its models, and what they cost."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import GenerationMixin
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from implicit_models.backbones.attention import AttentionMixer, AttentionShape
from implicit_models.backbones.feed_forward import FeedForward
from implicit_models.backbones.key_value import KeyValueCarry
from implicit_models.backbones.rotary import Rotary, inverse_powers, no_rotation
from implicit_models.backbones.sliding_attention import SlidingAttentionMixer, SlidingCarry
from implicit_models.backbones.stack import Block
from implicit_models.families.costs import FLOAT32_BYTES, BlockMemory, Past, Work
from implicit_models.families.family import StackFamily, count_weight
from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.llama.peers import LlamaPeer, MistralPeer, SmolLM3Peer
from implicit_models.families.registration import register_models
from implicit_models.kernels.sliding_attention import num_pairs
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.trunk import ImplicitModel


class ImplicitLlamaModel(ImplicitModel):
    """Llama without a head."""

    config_class = ImplicitLlamaConfig

    @staticmethod
    def block(config: ImplicitLlamaConfig) -> Block:
        """Build attention, with a feed-forward network behind it."""
        sizes = {
            "num_layers": config.num_hidden_layers,
            "normalised_weights": config.weight_normalisation,
        }
        shape, rotary, window = _shape(config), _rotary(config), config.sliding_window
        if window is None:
            mixer = AttentionMixer(shape, rotary, **sizes)
        else:
            mixer = SlidingAttentionMixer(
                shape, rotary, window=window, is_padded=config.pad_window, **sizes
            )
        feed_forward = FeedForward(config.hidden_size, config.intermediate_size, **sizes)
        return Block(mixer, feed_forward, config.rms_norm_eps)


class ImplicitLlamaForCausalLM(ImplicitForCausalLM, GenerationMixin):
    """Llama as a language model.

    | weight | begins as |
    |---|---|
    | qkv_proj, gate_up_proj | uniform in +-1/sqrt(d_model) |
    | out_proj, down_proj | uniform in +-1/sqrt(fan_in 2 num_layers) |
    | the rest | as in `ImplicitForCausalLM` |
    """

    config_class = ImplicitLlamaConfig
    trunk_class = ImplicitLlamaModel


@dataclass(frozen=True, kw_only=True)
class LlamaFlops:
    """What Llama's blocks cost."""

    num_layers: int
    d_model: int
    d_inner: int
    d_projection: int
    d_feed_forward: int
    sliding_window: int | None = None
    pad_window: bool = False

    def evaluation(self, length: int, *, before: float | None = None) -> Work:
        """Return the work of computing some tokens together; see `StackFlops`."""
        widths = self.d_projection + self.d_inner + 3 * self.d_feed_forward
        pairs, layers = self._pairs(length, before), self.num_layers
        return Work(2 * layers * self.d_model * widths * length, 4 * layers * self.d_inner * pairs)

    def _pairs(self, length: int, before: float | None) -> float:
        """Return how many products of a query with a key each head takes."""
        window = self.sliding_window
        is_whole = before is None and not self.pad_window
        if window is None or (is_whole and length <= window):
            return length * ((before or 0) + length)
        return num_pairs(length, window)  # of a carry all slots, empty or not

    def carry(self, length: int) -> float:
        """Return 0: keys and values are there already."""
        return 0.0

    def last_products(self, length: int) -> float:
        """Return the FLOPs of the last products of the feed-forward networks."""
        return 2 * self.num_layers * self.d_feed_forward * self.d_model * length


def feed_forward_width(width: int) -> int:
    """Return SwiGLU's width in the paper: 2/3 of d_ff = 4 * width, in 64s.

    It is rounded up. The released code rounds down to a whole number (docs/comparison.md).
    """
    return -(-2 * 4 * width // (3 * 64)) * 64


class LlamaFamily(StackFamily[ImplicitLlamaConfig]):
    """Llama, explicit and implicit."""

    model_class = ImplicitLlamaForCausalLM
    peers = (LlamaPeer(), MistralPeer(), SmolLM3Peer())
    published_sizes = {
        name: {
            "num_hidden_layers": layers,
            "hidden_size": width,
            "num_attention_heads": heads,
            "intermediate_size": feed_forward_width(width),
        }
        for name, layers, width, heads in (
            ("130m", 12, 768, 12),
            ("350m", 24, 1024, 16),
            ("760m", 24, 1536, 16),
            ("1.3b", 24, 2048, 32),
        )
    }

    def resized(self, size: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return a size's fields: heads and feed-forward network follow from the width."""
        head_dim = changes.get("head_dim") or size["hidden_size"] // size["num_attention_heads"]
        width = changes.get("hidden_size", size["hidden_size"])
        fields = {**size, **changes}
        if not all(isinstance(each, int) and each > 0 for each in (width, head_dim)):
            return fields  # which the configuration refuses
        if "num_attention_heads" not in changes:
            if width % head_dim:
                raise ValueError(
                    f"hidden_size is {width} and a head's width {head_dim}; hidden_size must be a "
                    "multiple of it, or num_attention_heads must be given"
                )
            fields["num_attention_heads"] = width // head_dim
        if "intermediate_size" not in changes:
            fields["intermediate_size"] = feed_forward_width(width)
        return fields

    def make_configuration(self, **fields: Any) -> ImplicitLlamaConfig:
        """Return a configuration of Llama."""
        return ImplicitLlamaConfig(**fields)

    def sizes(self, parameters: Any) -> dict[str, Any]:
        """Return Llama's own sizes under transformers' names."""
        return {
            "num_attention_heads": parameters.num_heads,
            "num_key_value_heads": parameters.num_key_value_heads,
            "head_dim": parameters.head_dim,
            "intermediate_size": parameters.d_feed_forward,
            "rope": parameters.rope,
            "rope_parameters": {"rope_type": "default", "rope_theta": parameters.rope_theta},
            "sliding_window": parameters.sliding_window,
            "pad_window": parameters.pad_window,
        }

    def of_size(self, parameters: Any, vary: str, number: int) -> Any:
        """Return the parameters with so many layers, or with so many units of heads.

        d_feed_forward and d_model go with the heads, in proportion.
        """
        if vary == "depth":
            return parameters.replace(num_layers=number)
        width, heads, hidden = parameters.d_model, parameters.num_heads, parameters.d_feed_forward
        shared_by = heads // (parameters.num_key_value_heads or heads)
        unit = math.lcm(shared_by, heads // math.gcd(heads, width))  # of heads, so that all divide
        # As round a number as it was: matrix units like multiples of 64, or of 8.
        multiple = math.gcd(hidden, 64)
        chosen = number * unit
        return parameters.replace(
            d_model=width * chosen // heads,
            num_heads=chosen,
            num_key_value_heads=chosen // shared_by,
            head_dim=parameters.head_dim or width // heads,
            d_feed_forward=max(1, round(hidden * chosen / heads / multiple)) * multiple,
        )

    def projection_width(self, config: ImplicitLlamaConfig) -> int:
        """Return the width of queries, keys and values."""
        return _shape(config).d_projection

    def count_block(self, config: ImplicitLlamaConfig) -> int:
        """Count the parameters of one block."""
        shape, width, hidden = _shape(config), config.hidden_size, config.intermediate_size
        block = 2 * width + count_weight(config, shape.d_projection, width)
        block += count_weight(config, width, shape.d_inner)
        return block + count_weight(config, 2 * hidden, width) + count_weight(config, width, hidden)

    def stack_flops(self, config: ImplicitLlamaConfig) -> LlamaFlops:
        """Return what the blocks cost, in closed form."""
        shape = _shape(config)
        return LlamaFlops(
            num_layers=config.num_hidden_layers,
            d_model=config.hidden_size,
            d_inner=shape.d_inner,
            d_projection=shape.d_projection,
            d_feed_forward=config.intermediate_size,
            sliding_window=config.sliding_window,
            pad_window=config.pad_window,
        )

    def past(self, carry: KeyValueCarry | SlidingCarry) -> Past:
        """Return how many keys a block's carry holds."""
        return Past(lengths=carry.lengths.cpu().numpy(), reach=carry.reach)

    def block_memory(self, config: ImplicitLlamaConfig, number_bytes: int) -> BlockMemory:
        """Count a block's bytes, where a number of its activations has so many."""
        shape, width, number = _shape(config), config.hidden_size, number_bytes
        stream, injection = FLOAT32_BYTES * width, number * shape.d_projection
        attention = number * (shape.d_projection + shape.d_inner)
        attention += FLOAT32_BYTES * config.num_attention_heads
        masks = 0
        if config.sliding_window is not None:
            # Blocks share keys and values: at most half of those that one reads are its own. A
            # block's mask is a byte for each pair, and a number once it is added.
            attention += 2 * number * shape.d_keys
            masks = 3 * config.sliding_window * (1 + FLOAT32_BYTES)
        # Gate, up, and the product.
        feed_forward = 3 * number * config.intermediate_size
        norms = 2 * (FLOAT32_BYTES + number * width)
        mixing = attention + masks + injection  # before and after the rotation
        return BlockMemory(
            injection=injection,
            kept=2 * stream + norms + attention + feed_forward,
            search=2 * stream + number * width + max(mixing, feed_forward),
            # In the network: gate or up, and the gradients of both and of their product.
            backward=2 * stream
            + injection
            + max(mixing, feed_forward + number * config.intermediate_size),
        )


def _shape(config: ImplicitLlamaConfig) -> AttentionShape:
    assert config.num_key_value_heads and config.head_dim
    return AttentionShape(
        d_model=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
    )


def _rotary(config: ImplicitLlamaConfig) -> Rotary:
    assert config.rope_parameters and config.head_dim
    if not config.rope:
        return Rotary(functools.partial(no_rotation, config.head_dim))
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        theta = config.rope_parameters["rope_theta"]
        return Rotary(functools.partial(inverse_powers, theta, config.head_dim))
    with torch.device("cpu"):  # transformers builds what it loads on "meta"
        scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))[1]
    return Rotary(functools.partial(_scaled_frequencies, kind, config), scaling)


def _scaled_frequencies(
    kind: str, config: ImplicitLlamaConfig, device: torch.device
) -> Float[Tensor, " half"]:
    return ROPE_INIT_FUNCTIONS[kind](config, device)[0]


FAMILY = LlamaFamily()
register_models(ImplicitLlamaConfig, ImplicitLlamaForCausalLM, ImplicitLlamaModel)
