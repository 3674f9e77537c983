"""FLOPs of any model of transformers, counted on a few tokens and extended to any length."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from implicit_models.families.costs import ModelFlops, Work
from implicit_models.language_models.language_model import LanguageModel

# A model is counted on so many tokens, and on two and three times as many; one that scans chunks on
# so many chunks.
_COUNTED_TOKENS = 16
_CHUNK_LENGTHS = ("chunk_size", "mamba_chunk_size")  # as configurations call them


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
        """Return the work of computing some tokens together; see `StackFlops`."""
        filled = -(-length // self.chunk_length) * self.chunk_length
        pairs = filled * ((before or 0) + filled)
        weights = self.once + self.token * length
        return Work(weights, self.filled_token * filled + self.pair * pairs)

    def carry(self, length: int) -> float:
        """Return 0: no more than is there is taken."""
        return 0.0

    def last_products(self, length: int) -> float:
        """Return 0: not known, or not checkpointed."""
        return 0.0


def count_model(model: LanguageModel) -> ModelFlops:
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
