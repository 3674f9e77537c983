"""Reading texts piece by piece with a model of transformers, which is tried out first.

On a few tokens, and once for its present weights: whether its head, applied to the hidden states
of its trunk, makes its logits to the bit, and whether its cache remembers a text.
"""

import copy
import inspect
import logging
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from implicit_models.equilibrium.phase import Phase
from implicit_models.families.costs import Past
from implicit_models.families.reader import Piece
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.source_names import SourceError

log = logging.getLogger(__name__)

_PROBED_TOKENS = 12
# How far the logits of a text in two pieces may be from those of the whole, against the largest, by
# what weights are kept in: rounding stays below. Of random Llama, Qwen, GPT-2 and Mamba2, of 32 to
# 768 numbers a token, it was 7e-5 at most in float32, of GPT-2 with weights of .5, and else 5e-6;
# what Mamba loses of its convolution is 4e-4 with weights of .1. With TF32, emulated,
# GPT-2 had 5.5e-4: its bound finds out less.
_LARGEST_DEVIATION = {torch.float64: 1e-6, torch.float32: 2e-4}
_LARGEST_DEVIATION_OF_HALVES = 5e-2
_LARGEST_DEVIATION_OF_TF32 = 5e-3
_SAMPLED = 64  # numbers of each weight, by which it is known again


@dataclass(frozen=True)
class _Abilities:
    """What a model was found to be able to do.

    Attributes
    ----------
    has_separate_head
        Whether its head and its trunk can be called apart.
    remembers
        Whether it reads on from its cache as it reads the whole.
    """

    has_separate_head: bool
    remembers: bool


class TransformersReader:
    """The reader of any causal language model of transformers; its memory is a cache of theirs."""

    takes_unequal_lengths = False

    def __init__(self, model: LanguageModel) -> None:
        abilities = _abilities(model)
        self.model, self.abilities = model, abilities
        self.remembers = abilities.remembers
        self.makes_all_logits = not abilities.has_separate_head
        self.vocabulary_size = _vocabulary_size(model)

    def read(
        self,
        tokens: Int[Tensor, "B L"],
        *,
        mask: Bool[Tensor, "B L"] | None,
        memory: Any,
        keeps_memory: bool,
        phase: Phase | None,
    ) -> Piece:
        """Read tokens; see `Reader`."""
        # Padding stands on the right, where no token of a causal model sees it: no mask is needed.
        arguments: dict[str, Any] = {"use_cache": keeps_memory or memory is not None}
        if self.remembers and memory is not None:
            arguments["cache"] = memory
        part = self.model.base_model if self.abilities.has_separate_head else self.model
        past = Past(lengths=np.zeros(len(tokens), dtype=np.int64), reach=_num_keys(memory))
        try:
            found = part(input_ids=tokens, return_dict=True, **arguments)
        except IndexError as error:
            raise self._too_long(tokens.shape[1], memory, error) from error
        kept = found.cache if keeps_memory and self.remembers else None
        if self.makes_all_logits:
            return Piece(found.logits, _same, kept, past=past)
        return Piece(found.last_hidden_state, self._logits, kept, past=past)

    def select(self, memory: Any, rows: Int[Tensor, " R"]) -> Any:
        """Copy the memory of some sequences."""
        chosen = copy.deepcopy(memory)
        chosen.reorder_cache(rows)
        return chosen

    def _logits(self, states: Float[Tensor, "K D"]) -> Float[Tensor, "K V"]:
        return _through_the_head(self.model, states)

    def _too_long(self, length: int, memory: Any, error: IndexError) -> Exception:
        """Return what to raise: the error itself where it is not for want of positions."""
        limit = getattr(self.model.config, "max_position_embeddings", None)
        length += memory.get_seq_length() if memory is not None else 0
        if limit is None or length <= limit:
            return error
        return SourceError(
            f"a {type(self.model).__name__} of {limit} positions cannot read {length} tokens; "
            "choose a model with more, or shorter texts (context_length, lengths)"
        )


def _num_keys(memory: Any) -> float:
    """Return how many keys a cache holds of each sequence, on average over layers.

    Layers that attend to a window alone keep no more; those that have a state keep none.
    """
    layers = getattr(memory, "layers", ())
    found = [layer.keys.shape[-2] for layer in layers if getattr(layer, "keys", None) is not None]
    return sum(found) / max(len(found), 1)


def _same(states: Tensor) -> Tensor:
    return states


# What was found of each model and its weights: trying one out costs four small passes.
_known: "weakref.WeakKeyDictionary[LanguageModel, tuple[bytes, _Abilities]]"
_known = weakref.WeakKeyDictionary()


def _abilities(model: LanguageModel) -> _Abilities:
    weights = _sample(model)
    tried, found = _known.get(model, (None, None))
    if found is None or tried != weights:
        found = _try_out(model)
        _known[model] = weights, found
        if not (found.remembers and found.has_separate_head):
            log.info(
                "a %s is read with %s and %s",
                type(model).__name__,
                "a cache" if found.remembers else "whole texts at once, for want of a cache,",
                "its head apart" if found.has_separate_head else "all logits of what it reads",
            )
    return found


@torch.inference_mode()
def _sample(model: LanguageModel) -> bytes:
    """Return some numbers of every weight: a fused optimiser changes no version of a tensor."""
    flat = [each.detach().reshape(-1) for each in model.parameters() if each.numel()]
    taken = [each[:: max(1, len(each) // _SAMPLED)].double().cpu() for each in flat]
    return torch.cat(taken).numpy().tobytes() if taken else b""


@torch.inference_mode()
def _try_out(model: LanguageModel) -> _Abilities:
    limit = getattr(model.config, "max_position_embeddings", None) or _PROBED_TOKENS
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    places = torch.arange(min(_PROBED_TOKENS, limit), device=device)
    tokens = (places * 7919 + 1)[None] % _vocabulary_size(model)
    whole = model(input_ids=tokens, use_cache=False, return_dict=True).logits
    return _Abilities(_has_separate_head(model, tokens, whole), _remembers(model, tokens, whole))


def _has_separate_head(model: LanguageModel, tokens: Tensor, logits: Tensor) -> bool:
    """Return whether head and trunk make the logits, with nothing in between or after."""
    trunk = model.base_model
    if trunk is model or not callable(model.get_output_embeddings()):
        return False
    found = trunk(input_ids=tokens, use_cache=False, return_dict=True)
    states = getattr(found, "last_hidden_state", None)
    if states is None:
        return False
    made = _through_the_head(model, states)
    return made.shape == logits.shape and torch.equal(made.float(), logits.float())


def _remembers(model: LanguageModel, tokens: Tensor, logits: Tensor) -> bool:
    """Return whether a model reads on from its cache as it reads the whole."""
    half = tokens.shape[1] // 2 + 1
    first, rest = tokens[:, :half], tokens[:, half:]
    if "cache" not in inspect.signature(model.forward).parameters or not rest.shape[1]:
        return False
    cache = getattr(model(input_ids=first, use_cache=True, return_dict=True), "cache", None)
    if not hasattr(cache, "reorder_cache"):
        return False
    found = model(input_ids=rest, use_cache=True, return_dict=True, cache=cache).logits
    difference = (found - logits[:, first.shape[1] :]).abs().max()
    return bool(difference <= _allowed(model) * logits.abs().max())


def _allowed(model: LanguageModel) -> float:
    weights: Any = model.get_input_embeddings().weight
    if weights.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return _LARGEST_DEVIATION_OF_TF32
    return _LARGEST_DEVIATION.get(weights.dtype, _LARGEST_DEVIATION_OF_HALVES)


def _through_the_head(model: LanguageModel, states: Tensor) -> Tensor:
    head: Any = model.get_output_embeddings()
    return head(states.to(head.weight.dtype))


def _vocabulary_size(model: LanguageModel) -> int:
    embeddings: Any = model.get_input_embeddings()
    return getattr(embeddings, "num_embeddings", None) or model.config.vocab_size
