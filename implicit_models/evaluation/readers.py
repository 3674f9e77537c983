"""Hidden states of a text's next piece, from any causal language model, and logits of a few.

A *memory* is what a model keeps of the tokens it has read: our models' `CarryCache`, a cache of
transformers', or the states of an LSTM. Logits are by far the largest tensor of a language model
with a large vocabulary, so no reader computes more of them than asked for, where it can help it.
"""

import copy
import inspect
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from implicit_models.backbones.key_value import KeyValueCarry
from implicit_models.cost.flops import model_flops
from implicit_models.cost.reading import Past, reading_flops
from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Solution
from implicit_models.families.lstm.model import LSTMLanguageModel
from implicit_models.language_models.cache import CarryCache
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.modelling import ImplicitForCausalLM
from implicit_models.language_models.phases import default_phase
from implicit_models.language_models.source_names import SourceError

log = logging.getLogger(__name__)

_PROBED_TOKENS = 12
# How far the logits of a text in two pieces may be from those of the whole, against the largest: a
# memory that is lost costs far more, and rounding far less.
_LARGEST_DEVIATION = {torch.float64: 1e-6, torch.float32: 1e-3}
_LARGEST_DEVIATION_OF_HALVES = 5e-2


@dataclass(frozen=True)
class Piece:
    """What a model makes of some tokens.

    Attributes
    ----------
    states
        Of each token: what ``logits`` takes.
    logits
        Gives the logits of some of the states.
    memory
        Of these tokens and all before them; None where none was asked for.
    flops, flops_per_logit
        Of making the states, and of the logits of one of them.
    self_iterations, search
        As in `ImplicitModelOutput`; None for a model that seeks no fixed point.
    """

    states: Float[Tensor, "B L D"]
    logits: Callable[[Float[Tensor, "K D"]], Float[Tensor, "K V"]]
    memory: Any
    flops: float
    flops_per_logit: int
    self_iterations: Int[Tensor, "B L"] | None = None
    search: Solution | None = None


class Reader(Protocol):
    """A model as something that reads texts piece by piece.

    Attributes
    ----------
    vocabulary_size
        Token ids lie below it.
    remembers
        Whether it can go on from a memory; otherwise it reads whole texts only.
    takes_unequal_lengths
        Whether it can go on after sequences of unequal lengths.
    makes_all_logits
        Whether its states are the logits themselves.
    """

    vocabulary_size: int
    remembers: bool
    takes_unequal_lengths: bool
    makes_all_logits: bool

    def read(
        self,
        tokens: Int[Tensor, "B L"],
        *,
        mask: Bool[Tensor, "B L"] | None,
        memory: Any,
        keeps_memory: bool,
        phase: Phase | None,
    ) -> Piece:
        """Read the tokens that follow those in the memory, which is used up.

        The mask is false at padding, which stands on the right.
        """
        ...

    def select(self, memory: Any, rows: Int[Tensor, " R"]) -> Any:
        """Copy the memory of some sequences, in any order and as often as wanted."""
        ...


def reader_of(model: LanguageModel) -> Reader:
    """Give the way to read with this model.

    A model of transformers is tried out on a few tokens once: whether its head, applied to the
    hidden states of its trunk, gives its logits to the bit, and whether its cache remembers a text.
    """
    if isinstance(model, ImplicitForCausalLM):
        return _OurReader(model)
    if isinstance(model, LSTMLanguageModel):
        return _LSTMReader(model)
    return _TransformersReader(model, _abilities(model))


class _OurReader:
    """Mamba2 and Llama of our own, implicit and explicit."""

    remembers = True
    takes_unequal_lengths = True
    makes_all_logits = False

    def __init__(self, model: ImplicitForCausalLM) -> None:
        self.model = model
        self.vocabulary_size: int = model.config.vocab_size

    def read(
        self,
        tokens: Int[Tensor, "B L"],
        *,
        mask: Bool[Tensor, "B L"] | None,
        memory: Any,
        keeps_memory: bool,
        phase: Phase | None,
    ) -> Piece:
        batch, length = tokens.shape
        if phase is None and self.model.is_implicit:
            phase = default_phase(self.model.config, differentiable=False, num_tokens=length)
        past = _past(memory, batch) if keeps_memory or memory is not None else None
        found = self.model.model(
            input_ids=tokens,
            attention_mask=mask,
            past_key_values=memory,
            use_cache=keeps_memory,
            return_dict=True,
            phase=phase,
        )
        shapes = model_flops(self.model)
        flops = reading_flops(
            shapes,
            num_sequences=batch,
            length=length,
            past=past,
            search=found.search,
            window=phase.window.width if phase is not None and phase.window else None,
            num_tokens=None if mask is None else mask.sum(1).cpu().numpy(),
        )
        return Piece(
            found.last_hidden_state,
            self._logits,
            found.past_key_values,
            flops,
            shapes.head,
            found.self_iterations,
            found.search,
        )

    def select(self, memory: Any, rows: Int[Tensor, " R"]) -> Any:
        chosen = memory.copy()
        chosen.batch_select_indices(rows)
        return chosen

    def _logits(self, states: Float[Tensor, "K D"]) -> Float[Tensor, "K V"]:
        # The embedding may have more rows than there are tokens.
        return self.model.lm_head(states[None])[0, :, : self.vocabulary_size]


class _LSTMReader:
    """torch's LSTM; its memory are the states of its layers."""

    remembers = True
    takes_unequal_lengths = False
    makes_all_logits = False

    def __init__(self, model: LSTMLanguageModel) -> None:
        self.model = model
        self.vocabulary_size: int = model.config.vocab_size

    def read(
        self,
        tokens: Int[Tensor, "B L"],
        *,
        mask: Bool[Tensor, "B L"] | None,
        memory: Any,
        keeps_memory: bool,
        phase: Phase | None,
    ) -> Piece:
        _check_explicit(self.model, phase)
        hidden, memory = self.model.lstm(self.model.embed_tokens(tokens), memory)
        shapes = model_flops(self.model)
        flops = reading_flops(shapes, num_sequences=len(tokens), length=tokens.shape[1])
        return Piece(self.model.projection(hidden), self._logits, memory, flops, shapes.head)

    def select(self, memory: Any, rows: Int[Tensor, " R"]) -> Any:
        return tuple(states.index_select(1, rows) for states in memory)

    def _logits(self, states: Float[Tensor, "K D"]) -> Float[Tensor, "K V"]:
        return F.linear(states, self.model.embed_tokens.weight)


@dataclass(frozen=True)
class _Abilities:
    """What a model of transformers was found to be able to do."""

    has_separate_head: bool
    cache: str | None


class _TransformersReader:
    """Any causal language model of transformers."""

    takes_unequal_lengths = False

    def __init__(self, model: LanguageModel, abilities: _Abilities) -> None:
        self.model, self.abilities = model, abilities
        self.remembers = abilities.cache is not None
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
        _check_explicit(self.model, phase)
        # Padding stands on the right, where no token of a causal model sees it: no mask is needed.
        arguments: dict[str, Any] = {"use_cache": keeps_memory or memory is not None}
        name = self.abilities.cache
        if name is not None and memory is not None:
            arguments[name] = memory
        part = self.model.base_model if self.abilities.has_separate_head else self.model
        batch, length = tokens.shape
        past = Past(lengths=np.zeros(batch, dtype=np.int64), reach=_num_keys(memory))
        try:
            found = part(input_ids=tokens, return_dict=True, **arguments)
        except IndexError as error:
            raise self._too_long(length, memory, error) from error
        kept = getattr(found, name) if keeps_memory and name is not None else None
        shapes = model_flops(self.model)
        flops = reading_flops(shapes, num_sequences=batch, length=length, past=past)
        if self.makes_all_logits:
            return Piece(found.logits, _same, kept, flops + batch * length * shapes.head, 0)
        return Piece(found.last_hidden_state, self._logits, kept, flops, shapes.head)

    def select(self, memory: Any, rows: Int[Tensor, " R"]) -> Any:
        chosen = copy.deepcopy(memory)
        chosen.reorder_cache(rows)
        return chosen

    def _logits(self, states: Float[Tensor, "K D"]) -> Float[Tensor, "K V"]:
        return _through_the_head(self.model, states)

    def _too_long(self, length: int, memory: Any, error: IndexError) -> Exception:
        """Give what to raise: the error itself where it is not for want of positions."""
        limit = getattr(self.model.config, "max_position_embeddings", None)
        length += memory.get_seq_length() if memory is not None else 0
        if limit is None or length <= limit:
            return error
        return SourceError(
            f"a {type(self.model).__name__} of {limit} positions cannot read {length} tokens; "
            "choose a model with more, or shorter texts (context_length, lengths)"
        )


# What was found of each model, as long as it lives: trying one out costs four small passes.
_known_abilities: "weakref.WeakKeyDictionary[LanguageModel, _Abilities]" = (
    weakref.WeakKeyDictionary()
)


def _abilities(model: LanguageModel) -> _Abilities:
    found = _known_abilities.get(model)
    if found is None:
        found = _known_abilities[model] = _try_out(model)
        if found.cache is None or not found.has_separate_head:
            log.info(
                "a %s is read with %s and %s",
                type(model).__name__,
                "a cache" if found.cache else "whole texts at once, for want of a cache,",
                "its head apart" if found.has_separate_head else "all logits of what it reads",
            )
    return found


@torch.inference_mode()
def _try_out(model: LanguageModel) -> _Abilities:
    limit = getattr(model.config, "max_position_embeddings", None) or _PROBED_TOKENS
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    places = torch.arange(min(_PROBED_TOKENS, limit), device=device)
    tokens = (places * 7919 + 1)[None] % _vocabulary_size(model)
    whole = model(input_ids=tokens, use_cache=False, return_dict=True).logits
    return _Abilities(_has_separate_head(model, tokens, whole), _cache_of(model, tokens, whole))


def _has_separate_head(model: LanguageModel, tokens: Tensor, logits: Tensor) -> bool:
    """Tell whether head and trunk make the logits, with nothing in between or after."""
    trunk = model.base_model
    if trunk is model or not callable(model.get_output_embeddings()):
        return False
    found = trunk(input_ids=tokens, use_cache=False, return_dict=True)
    states = getattr(found, "last_hidden_state", None)
    if states is None:
        return False
    made = _through_the_head(model, states)
    return made.shape == logits.shape and torch.equal(made.float(), logits.float())


def _cache_of(model: LanguageModel, tokens: Tensor, logits: Tensor) -> str | None:
    """Name the argument that takes the model's cache; None where it does not remember a text."""
    taken = inspect.signature(model.forward).parameters
    name = next((name for name in ("past_key_values", "cache_params") if name in taken), None)
    half = tokens.shape[1] // 2 + 1
    first, rest = tokens[:, :half], tokens[:, half:]
    if name is None or not rest.shape[1]:
        return None
    cache = getattr(model(input_ids=first, use_cache=True, return_dict=True), name, None)
    if not hasattr(cache, "reorder_cache"):
        return None
    memory: dict[str, Any] = {name: cache}
    found = model(input_ids=rest, use_cache=True, return_dict=True, **memory).logits
    difference = (found - logits[:, first.shape[1] :]).abs().max()
    allowed = _LARGEST_DEVIATION.get(logits.dtype, _LARGEST_DEVIATION_OF_HALVES)
    return name if bool(difference <= allowed * logits.abs().max()) else None


def _through_the_head(model: LanguageModel, states: Tensor) -> Tensor:
    head: Any = model.get_output_embeddings()
    return head(states.to(head.weight.dtype))


def _vocabulary_size(model: LanguageModel) -> int:
    embeddings: Any = model.get_input_embeddings()
    return getattr(embeddings, "num_embeddings", None) or model.config.vocab_size


def _past(memory: CarryCache | None, batch: int) -> Past:
    """Give what our models' carry holds; of a state it does not matter how long the text was."""
    first = None if memory is None or memory.carry is None else memory.carry.blocks[0]
    if not isinstance(first, KeyValueCarry):
        return Past(lengths=np.zeros(batch, dtype=np.int64), reach=0)
    return Past(lengths=first.lengths.cpu().numpy(), reach=first.reach)


def _num_keys(memory: Any) -> float:
    """Give how many keys a memory of transformers holds of each sequence, on average over layers.

    Layers that attend to a window alone keep no more; those that have a state keep none.
    """
    layers = getattr(memory, "layers", ())
    found = [layer.keys.shape[-2] for layer in layers if getattr(layer, "keys", None) is not None]
    return sum(found) / max(len(found), 1)


def _same(states: Tensor) -> Tensor:
    return states


def _check_explicit(model: LanguageModel, phase: Phase | None) -> None:
    if phase is not None:
        raise ValueError(f"phase is {phase}; a {type(model).__name__} seeks no fixed point")
