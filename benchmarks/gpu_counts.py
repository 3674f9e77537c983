"""Work in closed form: operations of matrix products, and bytes of a search's evaluations.

Operations are those of the projections, of attention (half of all pairs of tokens) and of the head.
Those of Mamba2's scan, which depend on its chunks, are left out. A product's backward is twice its
forward; the search has none.

Bytes are estimated: each operation of a cell's evaluation reads its inputs and writes its outputs
once, in the dtypes they have with our kernels (the residual stream in float32), and the weights are
read once an evaluation. What caches save and what is read twice is not known to it.
"""

from dataclasses import dataclass

from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.language_models.configuration import ImplicitConfig

_PRECISE = 4  # bytes of a number of the residual stream
_CHUNK_LENGTH = 64  # where the configuration leaves it to the kernel


@dataclass(frozen=True)
class Widths:
    """The widths that count: of the model, of the mixer's inside, of its input projection."""

    model: int
    inner: int
    projection: int
    hidden: int  # of the feed-forward network; 0 where there is none


def widths(config: ImplicitConfig) -> Widths:
    """Return a configuration's widths."""
    if isinstance(config, ImplicitLlamaConfig):
        assert config.head_dim and config.num_key_value_heads
        inner = config.num_attention_heads * config.head_dim
        projection = inner + 2 * config.num_key_value_heads * config.head_dim
        return Widths(config.hidden_size, inner, projection, config.intermediate_size)
    assert isinstance(config, ImplicitMamba2Config)
    inner = config.expand * config.hidden_size
    projection = 2 * inner + 2 * config.n_groups * config.state_size + config.num_heads
    return Widths(config.hidden_size, inner, projection, 0)


def block_weights(config: ImplicitConfig) -> int:
    """Count the numbers of a block's matrices."""
    w = widths(config)
    return w.model * (w.projection + w.inner + 3 * w.hidden)


def cell_operations(config: ImplicitConfig, num_tokens: int, length: int) -> int:
    """Count the operations of an evaluation of the cell."""
    attention = 2 * length * widths(config).inner if isinstance(config, ImplicitLlamaConfig) else 0
    return num_tokens * config.num_hidden_layers * (2 * block_weights(config) + attention)


def step_operations(
    config: ImplicitConfig, num_tokens: int, length: int, search: int, phantom: int
) -> int:
    """Count the operations of a training step: search, phantom steps, injection and head."""
    w = widths(config)
    once = 2 * num_tokens * w.model * (w.projection + config.num_embeddings)
    return cell_operations(config, num_tokens, length) * (search + 3 * phantom) + 3 * once


def cell_bytes(config: ImplicitConfig, num_tokens: int, size: int) -> int:
    """Estimate the bytes that an evaluation moves in a search; ``size`` is a number's bytes."""
    w, layers = widths(config), config.num_hidden_layers
    norm = (_PRECISE + size) * w.model
    addition = (2 * _PRECISE + size) * w.model
    inputs = size * (w.model + 2 * w.projection)  # the injection is read with them
    block = norm + inputs + size * (w.inner + w.model) + addition
    if isinstance(config, ImplicitLlamaConfig):
        assert config.head_dim and config.num_key_value_heads
        rotated = w.inner + config.num_key_value_heads * config.head_dim
        block += size * (2 * w.model + 2 * rotated + w.projection + w.inner)
        # Two products of the normed rows, the gate in place of one, and the way down.
        block += norm + addition + size * (3 * w.model + (2 + 3 + 1) * w.hidden)
    else:
        assert isinstance(config, ImplicitMamba2Config)
        maps = 2 * config.n_groups * config.state_size
        convolution = 2 * size * (w.inner + maps)
        states = w.inner * config.state_size * size // (config.chunk_size or _CHUNK_LENGTH)
        # Written before each chunk, and read for its outputs.
        scan = size * (3 * w.inner + 2 * maps + 2 * config.num_heads) + 2 * states
        block += convolution + scan + size * 3 * w.inner
    ends = (size + _PRECISE) * w.model + (_PRECISE + 2 * size) * w.model
    return num_tokens * (layers * block + ends) + size * layers * block_weights(config)
