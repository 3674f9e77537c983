"""FLOPs of a model, in closed form from its shapes; a multiplication with its addition counts two.

Counted are products of matrices, as ``torch.utils.flop_counter`` counts them where
IMPLICIT_MODELS_KERNELS is ``reference``: of causal attention the whole square, of the scan its
chunks with what fills up the last. What works element by element is not: norms, activations, the
convolution, normalised weights.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedConfig

from implicit_models.kernels.reference import CHUNK_LENGTH
from implicit_models.language_models.building import LanguageModel
from implicit_models.language_models.configuration import (
    ImplicitLlamaConfig,
    ImplicitMamba2Config,
    LSTMConfig,
)
from implicit_models.language_models.reading import read


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

    def evaluation(self, length: int, span: int, *, has_carry: bool) -> Work:
        """Give the work of computing each token of a text once.

        Parameters
        ----------
        length
            Tokens of the text.
        span
            So many of them are computed together, what lies before them being read from a carry.
        has_carry
            Whether the first of them follow a carry as well, be it empty.
        """
        ...

    def carry(self, length: int) -> float:
        """Give the FLOPs of taking the carry after pieces that have so many tokens in all."""
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

    def evaluation(self, length: int, span: int, *, has_carry: bool) -> Work:
        """Give the work of computing each token of a text once; see `StackFlops`."""
        weights = 2 * self.d_model * (self.d_projection + self.d_inner) * length
        scans = 0
        for count, size, end in _pieces(length, span):
            scans += count * self._scan(size, has_carry or end > size)
        return Work(self.num_layers * weights, self.num_layers * scans)

    def carry(self, length: int) -> float:
        """Give the FLOPs of the states after pieces that have so many tokens in all."""
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

    def evaluation(self, length: int, span: int, *, has_carry: bool) -> Work:
        """Give the work of computing each token of a text once; see `StackFlops`."""
        widths = self.d_projection + self.d_inner + 3 * self.d_feed_forward
        pairs = sum(
            # Of ``count`` pieces, the last of which ends at ``end``, the average ends here:
            count * size * (end - (count - 1) * size / 2)
            for count, size, end in _pieces(length, span)
        )
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

    def evaluation(self, length: int, span: int, *, has_carry: bool) -> Work:
        """Give the work of computing each token of a text once; see `StackFlops`."""
        read = self.d_model + (self.num_layers - 1) * self.hidden_size
        gates = 4 * (read + self.num_layers * self.hidden_size)
        return Work(2 * self.hidden_size * (gates + self.d_model) * length, 0.0)

    def carry(self, length: int) -> float:
        """Give 0: no more than is there is taken."""
        return 0.0

    def last_products(self, length: int) -> float:
        """Give 0: not known, or not checkpointed."""
        return 0.0


class CountedFlops:
    """What a model of transformers costs, logits included, by torch's counter.

    One text of each length is read for it, with the model given and where that is. A text that is
    read in pieces counts as if it were read as a whole.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._counted: dict[int, int] = {}

    def evaluation(self, length: int, span: int, *, has_carry: bool) -> Work:
        """Give the work of computing each token of a text once; see `StackFlops`."""
        if length not in self._counted:
            self._counted[length] = _count_forward(self._model, length)
        return Work(self._counted[length], 0.0)

    def carry(self, length: int) -> float:
        """Give 0: no more than is there is taken."""
        return 0.0

    def last_products(self, length: int) -> float:
        """Give 0: not known, or not checkpointed."""
        return 0.0


def model_flops(model: LanguageModel) -> ModelFlops:
    """Give what a model costs: ours in closed form, others counted."""
    if isinstance(model.config, ImplicitMamba2Config | ImplicitLlamaConfig | LSTMConfig):
        return configuration_flops(model.config)
    return ModelFlops(head=0, injection=0, stack=CountedFlops(model))


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


def _pieces(length: int, span: int) -> Iterator[tuple[int, int, int]]:
    """Cut a text: number, size and last end of the whole pieces, then of the rest."""
    count, rest = divmod(length, span)
    if count:
        yield count, span, length - rest
    if rest:
        yield 1, rest, length


@torch.inference_mode()
def _count_forward(model: LanguageModel, length: int) -> int:
    # The counter does not know the kernel of a CPU.
    mapping = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
    counter = FlopCounterMode(display=False, custom_mapping=mapping)
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    tokens = torch.zeros(1, length, dtype=torch.long, device=device)
    was_training = model.training
    model.eval()  # dropout would draw numbers that a training is to draw
    with counter:
        read(model, tokens, None)
    model.train(was_training)
    return counter.get_total_flops()


def _attention_flops(
    queries: torch.Size, keys: torch.Size, values: torch.Size, *args: Any, **kwargs: Any
) -> int:
    batch, heads, length, width = queries
    return 2 * batch * heads * length * keys[2] * (width + values[3])
