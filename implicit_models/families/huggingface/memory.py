"""What a model of transformers hands to the texts that follow, where its cache has a fixed size.

That is where every layer keeps a state, or the keys and values of a sliding window. Whether a model
goes on from it is tried out first, on a few tokens and once: not all of them read their own cache.
"""

import inspect
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from implicit_models.language_models.language_model import LanguageModel

_PROBED = (5, 7)  # tokens of two pieces
_LARGEST_DEVIATION = 1e-4  # against the largest number: rounding is far less
# Rotations of these depend on the length of the text: those of keys that are kept would be old.
_CHANGING_ROTATIONS = ("dynamic", "longrope")


class NoMemory(ValueError):
    """Why a model's cache cannot be handed on."""


class _States(LinearAttentionLayer):
    """A layer of states that are there from a text's start; none is written over."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "_States":
        """Return a layer of these `tensors`."""
        layer = cls(number_of_states=1 + max(int(name.split("_")[1]) for name in tensors))
        for name, tensor in tensors.items():
            kind, number = name.split("_")[0], int(name.split("_")[1])
            # A step of one token is written into the states themselves (and has no gradient).
            getattr(layer, f"{kind}_states")[number] = tensor.clone()
            getattr(layer, f"is_{kind}_states_initialized")[number] = True
            layer.has_previous_state[number] = True
            layer.device, layer.dtype = tensor.device, tensor.dtype
            if kind == "conv":
                layer.conv_kernel_size[number] = tensor.shape[-1]
        return layer

    @staticmethod
    def tensors(layer: LinearAttentionLayer) -> dict[str, Tensor]:
        """Return the states of a layer."""
        kinds = {"conv": layer.conv_states, "recurrent": layer.recurrent_states}
        return {
            f"{kind}_{number}": state
            for kind, states in kinds.items()
            for number, state in states.items()
            if state is not None
        }

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        """Put new inputs of the convolution behind those that it keeps; return all."""
        kept = self.conv_states[state_idx].to(conv_states.dtype)  # type: ignore
        whole = torch.cat((kept, conv_states), dim=-1)
        self.conv_states[state_idx] = whole[..., -self.conv_kernel_size[state_idx] :]  # type: ignore
        return whole

    def update_recurrent_state(
        self, recurrent_states: Tensor, state_idx: int = 0, **_: Any
    ) -> Tensor:
        """Take the next state."""
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


class _Window(DynamicSlidingWindowLayer):
    """The keys and values of a sliding window, which is full from a text's start: of zeros."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "_Window":
        """Return a layer of these `tensors`."""
        keys, values = tensors["keys"], tensors["values"]
        layer = cls(sliding_window=keys.shape[2] + 1)
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values, layer.cumulative_length = keys, values, keys.shape[2]
        return layer

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Put new keys and values behind those that it keeps, in the precision of the new."""
        assert self.keys is not None and self.values is not None
        self.keys, self.values = self.keys.to(key_states), self.values.to(value_states)
        return super().update(key_states, value_states, *args, **kwargs)

    @staticmethod
    def tensors(layer: DynamicSlidingWindowLayer) -> dict[str, Tensor]:
        """Return keys and values of a layer, with empty slots before them where it is not full."""
        keys, values = layer.keys, layer.values
        assert keys is not None and values is not None
        pad = (0, 0, max(0, layer.sliding_window - 1 - keys.shape[2]), 0)
        return {"keys": F.pad(keys, pad), "values": F.pad(values, pad)}


_KINDS: dict[type, Any] = {LinearAttentionLayer: _States, DynamicSlidingWindowLayer: _Window}
_KINDS |= {kind: kind for kind in tuple(_KINDS.values())}


@dataclass(frozen=True, eq=False)
class TransformersMemory:
    """A cache of transformers as tensors that have a row for each sequence.

    Attributes
    ----------
    kinds
        Of its layers.
    values
        The layers' tensors, by layer and name. Where there are windows, ``filled`` is how many of a
        sequence's slots hold a token, and ``position`` where its next token stands.
    """

    kinds: tuple[Any, ...]
    values: Mapping[str, Tensor]

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors by name, each with a row for each text."""
        return dict(self.values)

    def resumed(self, tensors: Mapping[str, Tensor]) -> "TransformersMemory":
        """Return a memory whose `tensors` these are."""
        return replace(self, values=dict(tensors))

    def arguments(self, num_tokens: int) -> dict[str, Any]:
        """Return what a forward pass over so many tokens is told."""
        layers = [kind.of(self._layer(i)) for i, kind in enumerate(self.kinds)]
        found: dict[str, Any] = {"cache": Cache(layers=layers), "use_cache": True}
        if "filled" in self.values:
            filled, position = self.values["filled"], self.values["position"]
            ahead = torch.arange(num_tokens, device=filled.device)
            slots = torch.arange(self._num_slots, device=filled.device)
            there = slots >= self._num_slots - filled[:, None]
            own = torch.ones_like(ahead, dtype=torch.bool).expand(len(filled), -1)
            found["attention_mask"] = torch.cat((there, own), dim=1).long()
            found["position_ids"] = position[:, None] + ahead
        return found

    def following(self, output: Any) -> "TransformersMemory":
        """Return the memory after the tokens of a forward pass."""
        values = dict(_tensors_of(output.cache.layers))
        if "filled" in self.values:
            num_tokens = output.logits.shape[1]
            filled = (self.values["filled"] + num_tokens).clamp(max=self._num_slots)
            values |= {"filled": filled, "position": self.values["position"] + num_tokens}
        return replace(self, values=values)

    @property
    def _num_slots(self) -> int:
        return self.values["0.keys"].shape[2]

    def _layer(self, number: int) -> dict[str, Tensor]:
        prefix = f"{number}."
        return {k.removeprefix(prefix): t for k, t in self.values.items() if k.startswith(prefix)}


# What a text's start is for each model, as long as it lives: of one sequence.
_known: "weakref.WeakKeyDictionary[LanguageModel, TransformersMemory]" = weakref.WeakKeyDictionary()


def initial_memory(model: LanguageModel, num_sequences: int) -> TransformersMemory:
    """Return the memory of a text's start, which a model has been found to go on from.

    Raises
    ------
    NoMemory
        Why there is none.
    """
    found = _known.get(model)
    if found is None:
        were_training = model.training
        try:
            found = _tried_out(model.eval())
        finally:
            model.train(were_training)
        _known[model] = found
    device = next(model.parameters()).device
    rows = {
        name: tensor.to(device).expand(num_sequences, *tensor.shape[1:])
        for name, tensor in found.values.items()
    }
    return found.resumed(rows)


@torch.no_grad()
def _tried_out(model: LanguageModel) -> TransformersMemory:
    taken = inspect.signature(model.forward).parameters
    if "cache" not in taken:
        raise NoMemory("it takes no cache")
    rope = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _CHANGING_ROTATIONS:
        raise NoMemory(f"its rotations depend on the length of the text ({rope['rope_type']})")
    vocabulary: int = model.config.vocab_size
    device = next(model.parameters()).device
    first, second = (
        ((torch.arange(2 * length, device=device) * 7919 + length) % vocabulary).view(2, length)
        for length in _PROBED
    )
    cache = getattr(model(input_ids=first, use_cache=True), "cache", None)
    memory = _start(getattr(cache, "layers", None) or ())
    if "filled" in memory.values and "position_ids" not in taken:
        raise NoMemory("it takes no position_ids")
    start = memory.resumed({k: t.expand(2, *t.shape[1:]) for k, t in memory.values.items()})

    def read(tokens: Int[Tensor, "B L"], before: TransformersMemory) -> tuple[Tensor, Any]:
        output = model(input_ids=tokens, **before.arguments(tokens.shape[1]))
        return output.logits, before.following(output)

    text = torch.cat((first, second), dim=1)
    expected, whole = read(text, start)
    own, alone = read(second, start)
    after = read(first, start)[1]
    reset = torch.tensor([[False], [True]], device=device)  # the second row begins anew
    mixed = {
        name: torch.where(reset.view(2, *(1 for _ in t.shape[1:])), start.values[name], t)
        for name, t in after.values.items()
    }
    found, end = read(second, after.resumed(mixed))
    plain = model(input_ids=text, use_cache=False).logits
    pairs = [(expected, plain), (found[0], expected[0, -second.shape[1] :]), (found[1], own[1])]
    for name, tensor in end.values.items():
        pairs += [(tensor[0], whole.values[name][0]), (tensor[1], alone.values[name][1])]
    if not all(_agree(ours, theirs) for ours, theirs in pairs):
        raise NoMemory("with its cache it does not read on as it reads the whole")
    return memory


def _start(layers: Any) -> TransformersMemory:
    """Return the memory of a text's start, as the layers of a cache of another text have it."""
    for layer in layers:
        if type(layer) not in _KINDS:
            raise NoMemory(
                f"its cache has a {type(layer).__name__}, which is neither a state nor a sliding "
                "window, and may grow with every token"
            )
    if not layers:
        raise NoMemory("its cache has no layers")
    values = {name: torch.zeros_like(each[:1]) for name, each in _tensors_of(layers)}
    if slots := {each.shape[2] for name, each in values.items() if name.endswith(".keys")}:
        if len(slots) > 1 or 0 in slots or "0.keys" not in values:
            raise NoMemory("its layers have sliding windows of several widths, or of one token")
        values |= {name: torch.zeros_like(values["0.keys"][:, 0, 0, 0]).long() for name in _PLACES}
    return TransformersMemory(tuple(_KINDS[type(each)] for each in layers), values)


_PLACES = ("filled", "position")


def _tensors_of(layers: Any) -> Iterator[tuple[str, Tensor]]:
    for number, layer in enumerate(layers):
        for name, tensor in _KINDS[type(layer)].tensors(layer).items():
            yield f"{number}.{name}", tensor


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    largest = theirs.abs().max()
    return bool((ours - theirs).abs().max() <= _LARGEST_DEVIATION * largest)
