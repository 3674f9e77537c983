"""FLOPs of a model, in closed form from its shapes; a multiplication with its addition counts two.

Counted are products of matrices, as ``torch.utils.flop_counter`` counts them where
IMPLICIT_MODELS_KERNELS is ``reference``: of causal attention the whole square, of the scan its
chunks with what fills up the last. What works element by element is not: norms, activations, the
convolution, normalised weights.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedConfig

from implicit_models.kernels.reference import CHUNK_LENGTH
from implicit_models.language_models.building import LanguageModel
from implicit_models.language_models.configuration import (
    ImplicitLlamaConfig,
    ImplicitMamba2Config,
    LSTMConfig,
)

# A model of transformers is counted on so many tokens, and on two and three times as many; one that
# scans chunks on so many chunks.
_COUNTED_TOKENS = 16
_CHUNK_LENGTHS = ("chunk_size", "mamba_chunk_size")  # as configurations call them


class Work(NamedTuple):
    """FLOPs, apart by what is multiplied.

    Attributes
    ----------
    weights
        Of activations with weights.
    mixing
        Of activations with activations: attention, or the scan.
    """

    weights: float
    mixing: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.mixing


class StackFlops(Protocol):
    """What a model's blocks cost."""

    def evaluation(self, length: int, *, before: float | None = None) -> Work:
        """Give the work of computing some tokens of a text together, each of them once.

        Parameters
        ----------
        length
            Number of tokens.
        before
            So many others lie before them in a carry, which is read: on an average over the layers;
            it may be empty. None where there is no carry.
        """
        ...

    def carry(self, length: int) -> float:
        """Give the FLOPs of taking the carry after so many tokens that are computed together."""
        ...

    def last_products(self, length: int) -> float:
        """Give the FLOPs of each block's last product, which checkpointing does not repeat."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelFlops:
    """What a model costs: each token's share, and what its blocks cost together.

    Attributes
    ----------
    head
        FLOPs of a token's logits.
    injection
        FLOPs of a token's injection, computed once whatever the iterations; 0 where there is none.
    stack
        The cell of an implicit model; of an explicit one, all between embedding and head.
    """

    head: int
    injection: int
    stack: StackFlops


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
        """Give the work of computing some tokens together; see `StackFlops`."""
        weights = 2 * self.d_model * (self.d_projection + self.d_inner) * length
        scan = self._scan(length, before is not None)
        return Work(self.num_layers * weights, self.num_layers * scan)

    def carry(self, length: int) -> float:
        """Give the FLOPs of the states after so many tokens."""
        return self.num_layers * self._states(length)

    def last_products(self, length: int) -> float:
        """Give the FLOPs of the output projections."""
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


@dataclass(frozen=True, kw_only=True)
class LlamaFlops:
    """What Llama's blocks cost."""

    num_layers: int
    d_model: int
    d_inner: int
    d_projection: int
    d_feed_forward: int

    def evaluation(self, length: int, *, before: float | None = None) -> Work:
        """Give the work of computing some tokens together; see `StackFlops`."""
        widths = self.d_projection + self.d_inner + 3 * self.d_feed_forward
        pairs = length * ((before or 0) + length)
        layers = self.num_layers
        return Work(2 * layers * self.d_model * widths * length, 4 * layers * self.d_inner * pairs)

    def carry(self, length: int) -> float:
        """Give 0: keys and values are there already."""
        return 0.0

    def last_products(self, length: int) -> float:
        """Give the FLOPs of the last products of the feed-forward networks."""
        return 2 * self.num_layers * self.d_feed_forward * self.d_model * length


@dataclass(frozen=True, kw_only=True)
class LSTMFlops:
    """What torch's LSTM costs, its projection to the embedding's width included."""

    num_layers: int
    d_model: int
    hidden_size: int

    def evaluation(self, length: int, *, before: float | None = None) -> Work:
        """Give the work of computing some tokens together; see `StackFlops`."""
        read = self.d_model + (self.num_layers - 1) * self.hidden_size
        gates = 4 * (read + self.num_layers * self.hidden_size)
        return Work(2 * self.hidden_size * (gates + self.d_model) * length, 0.0)

    def carry(self, length: int) -> float:
        """Give 0: no more than is there is taken."""
        return 0.0

    def last_products(self, length: int) -> float:
        """Give 0: not known, or not checkpointed."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class CountedFlops:
    """What the trunk of a model of transformers costs, by torch's counter.

    It is counted on a few tokens, and extended to any length. That is exact where the products of
    matrices are linear in the tokens and in the pairs of tokens: for transformers that attend to
    everything, read as a whole or in pieces, and for recurrent models. A scan in chunks, as of
    Mamba2, is filled up to whole chunks, whose length is taken from the configuration; that is
    exact for whole texts, and for one in pieces off by about a hundredth where they are short.

    Attributes
    ----------
    once
        FLOPs of a text, whatever its length.
    token
        Of each token.
    filled_token
        Of each token, those included that the last chunk is filled up with.
    pair
        Of each of these with each of the text, itself and those after it included.
    chunk_length
        1 where nothing is filled up.
    """

    once: float
    token: float
    filled_token: float
    pair: float
    chunk_length: int

    @classmethod
    def of(
        cls, count: Callable[[int], int], lengths: tuple[int, int, int], chunk_length: int = 1
    ) -> "CountedFlops":
        """Extend the counts of three texts; their lengths are whole chunks."""
        (short, middle, long), counts = lengths, [count(length) for length in lengths]
        rise = (counts[1] - counts[0]) / (middle - short)
        pair = ((counts[2] - counts[1]) / (long - middle) - rise) / (long - short)
        each = rise - pair * (short + middle)
        # One token fewer fills as many chunks.
        token = counts[0] - count(short - 1) if chunk_length > 1 else each
        return cls(
            once=counts[0] - each * short - pair * short**2,
            token=token,
            filled_token=each - token,
            pair=pair,
            chunk_length=chunk_length,
        )

    def evaluation(self, length: int, *, before: float | None = None) -> Work:
        """Give the work of computing some tokens together; see `StackFlops`."""
        filled = -(-length // self.chunk_length) * self.chunk_length
        pairs = filled * ((before or 0) + filled)
        weights = self.once + self.token * length
        return Work(weights, self.filled_token * filled + self.pair * pairs)

    def carry(self, length: int) -> float:
        """Give 0: no more than is there is taken."""
        return 0.0

    def last_products(self, length: int) -> float:
        """Give 0: not known, or not checkpointed."""
        return 0.0


# What was counted of each model, as long as it lives.
_counted: "weakref.WeakKeyDictionary[LanguageModel, ModelFlops]" = weakref.WeakKeyDictionary()


def model_flops(model: LanguageModel) -> ModelFlops:
    """Give what a model costs: ours in closed form; others counted once, on a few tokens."""
    if isinstance(model.config, ImplicitMamba2Config | ImplicitLlamaConfig | LSTMConfig):
        return configuration_flops(model.config)
    found = _counted.get(model)
    if found is None:
        found = _counted[model] = _count_model(model)
    return found


def configuration_flops(config: PreTrainedConfig) -> ModelFlops:
    """Give what a model of ours costs, of which there need be no more than the configuration.

    Raises
    ------
    ValueError
        Where the configuration is not one of ours.
    """
    if isinstance(config, LSTMConfig):
        width = config.embedding_size
        stack: Any = LSTMFlops(
            num_layers=config.num_hidden_layers, d_model=width, hidden_size=config.hidden_size
        )
        return ModelFlops(head=2 * width * config.vocab_size, injection=0, stack=stack)
    if isinstance(config, ImplicitLlamaConfig):
        stack = _llama(config)
    elif isinstance(config, ImplicitMamba2Config):
        stack = _mamba2(config)
    else:
        raise ValueError(
            f"the configuration is a {type(config).__name__}; FLOPs follow from an "
            "ImplicitMamba2Config, an ImplicitLlamaConfig or an LSTMConfig: of any other model "
            "take model_flops(model)"
        )
    width = config.hidden_size
    return ModelFlops(
        head=2 * width * config.num_embeddings,
        injection=2 * width * stack.d_projection if config.implicit else 0,
        stack=stack,
    )


def _mamba2(config: ImplicitMamba2Config) -> Mamba2Flops:
    inner, maps = config.expand * config.hidden_size, config.n_groups * config.state_size
    return Mamba2Flops(
        num_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        d_inner=inner,
        d_projection=2 * inner + 2 * maps + config.num_heads,
        state_size=config.state_size,
        maps=maps,
        chunk_length=config.chunk_size or CHUNK_LENGTH,
    )


def _llama(config: ImplicitLlamaConfig) -> LlamaFlops:
    assert config.num_key_value_heads and config.head_dim
    inner = config.num_attention_heads * config.head_dim
    return LlamaFlops(
        num_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        d_inner=inner,
        d_projection=inner + 2 * config.num_key_value_heads * config.head_dim,
        d_feed_forward=config.intermediate_size,
    )


def _count_model(model: LanguageModel) -> ModelFlops:
    """Count the trunk at three lengths, and how much more the model does for a token's logits."""
    limit = getattr(model.config, "max_position_embeddings", None) or 3 * _COUNTED_TOKENS
    chunk = next((n for name in _CHUNK_LENGTHS if (n := getattr(model.config, name, None))), 1)
    least = chunk if chunk > 1 else max(1, min(_COUNTED_TOKENS, limit // 3))
    stack = CountedFlops.of(
        lambda length: _count_forward(model, model.base_model, length),
        (least, 2 * least, 3 * least),
        chunk,
    )
    # All of it belongs to the trunk where the model is its own.
    more = _count_forward(model, model, least) - _count_forward(model, model.base_model, least)
    return ModelFlops(head=more // least, injection=0, stack=stack)


@torch.inference_mode()
def _count_forward(model: LanguageModel, part: Any, length: int) -> int:
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    tokens = torch.zeros(1, length, dtype=torch.long, device=device)
    counter = FlopCounterMode(display=False)
    was_training = model.training
    model.eval()  # dropout would draw numbers that a training is to draw
    # The counter does not know the attention kernel of a CPU, nor fewer keys than queries.
    with sdpa_kernel(SDPBackend.MATH), counter:
        part(input_ids=tokens, use_cache=False)
    model.train(was_training)
    return counter.get_total_flops()
