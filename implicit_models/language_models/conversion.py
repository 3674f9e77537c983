"""Weights to and from transformers' own Llama and Mamba2: the same numbers under other names."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    PreTrainedModel,
)

from implicit_models.language_models.configuration import (
    ImplicitLlamaConfig,
    ImplicitMamba2Config,
)
from implicit_models.language_models.modelling import (
    ImplicitForCausalLM,
    ImplicitLlamaForCausalLM,
    ImplicitMamba2ForCausalLM,
)
from implicit_models.language_models.sources import SourceError

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class _Same:
    """One of our weights is one of theirs, perhaps in another shape."""

    ours: str
    theirs: str
    their_shape: Callable[[Tensor], Tensor] = lambda tensor: tensor
    our_shape: Callable[[Tensor], Tensor] = lambda tensor: tensor


@dataclass(frozen=True)
class _Joined:
    """One of our weights is some of theirs, row upon row."""

    ours: str
    theirs: tuple[str, ...]


_Rule = _Same | _Joined


def from_transformers(source: PreTrainedModel) -> ImplicitForCausalLM:
    """Give transformers' Llama or Mamba2 as our explicit model, weight for weight.

    Raises
    ------
    SourceError
        Where it is another kind of model, or has a part that ours have not.
    """
    try:
        if isinstance(source, LlamaForCausalLM):
            config = _from_llama(source.config)
            model, rules = ImplicitLlamaForCausalLM, _llama_rules(config)
        elif isinstance(source, Mamba2ForCausalLM):
            config = _from_mamba2(source.config)
            model, rules = ImplicitMamba2ForCausalLM, _mamba2_rules(config)
        else:
            raise SourceError(
                f"the model is a {type(source).__name__}; it must be transformers' "
                "LlamaForCausalLM or Mamba2ForCausalLM, or an explicit model of ours"
            )
    except StrictDataclassError as error:
        raise SourceError(f"ours cannot have the source's sizes: {error.__cause__}") from error
    theirs = source.state_dict()
    converted = model(config).to(source.dtype)  # type: ignore[arg-type]
    ours = converted.state_dict()
    taken: set[str] = set()
    with torch.no_grad():
        for rule in rules:
            if isinstance(rule, _Joined):
                ours[rule.ours].copy_(torch.cat([theirs[name] for name in rule.theirs]))
                taken |= set(rule.theirs)
            else:
                ours[rule.ours].copy_(rule.our_shape(theirs[rule.theirs]))
                taken.add(rule.theirs)
    left = sorted(theirs.keys() - taken)
    if left:
        raise SourceError(f"the model has weights that ours have not: {', '.join(left)}")
    converted.generation_config = copy.deepcopy(source.generation_config)
    return converted.to(source.device).eval()  # type: ignore[arg-type]


def to_transformers(model: ImplicitForCausalLM) -> PreTrainedModel:
    """Give our explicit model as transformers' Llama or Mamba2, weight for weight.

    Raises
    ------
    ValueError
        Where the model is implicit, or its weights are normalised: transformers has neither.
    """
    config = model.config
    if config.implicit or config.weight_normalisation:
        what = "implicit" if config.implicit else "of normalised weights"
        raise ValueError(f"the model is {what}; transformers' own models are not")
    if isinstance(config, ImplicitLlamaConfig):
        peer, rules = LlamaForCausalLM(_to_llama(config)), _llama_rules(config)
    else:
        assert isinstance(config, ImplicitMamba2Config)
        peer, rules = Mamba2ForCausalLM(_to_mamba2(config)), _mamba2_rules(config)
    peer = peer.to(model.dtype)  # type: ignore[arg-type]
    ours, theirs = model.state_dict(), peer.state_dict()
    rows = config.vocab_size
    with torch.no_grad():
        for rule in rules:
            if isinstance(rule, _Joined):
                sizes = [len(theirs[name]) for name in rule.theirs]
                for name, part in zip(rule.theirs, ours[rule.ours].split(sizes), strict=True):
                    theirs[name].copy_(part)
            else:
                tensor = ours[rule.ours]
                if rule.ours in ("model.embed_tokens.weight", "lm_head.weight"):
                    tensor = tensor[:rows]
                theirs[rule.theirs].copy_(rule.their_shape(tensor))
    peer.generation_config = copy.deepcopy(model.generation_config)
    return peer.to(model.device).eval()  # type: ignore[arg-type]


def _common(config: Any) -> dict[str, Any]:
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings")
    names += ("initializer_range", "bos_token_id", "eos_token_id", "pad_token_id")
    return {name: getattr(config, name) for name in names}


def _from_llama(config: LlamaConfig) -> ImplicitLlamaConfig:
    _refuse(config, attention_bias=False, mlp_bias=False, hidden_act="silu")
    same = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
    same += ("max_position_embeddings", "rope_parameters", "rms_norm_eps")
    return ImplicitLlamaConfig(
        implicit=False, **_common(config), **{name: getattr(config, name) for name in same}
    )


def _to_llama(config: ImplicitLlamaConfig) -> LlamaConfig:
    same = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
    same += ("max_position_embeddings", "rope_parameters", "rms_norm_eps")
    return LlamaConfig(**_common(config), **{name: getattr(config, name) for name in same})


def _from_mamba2(config: Mamba2Config) -> ImplicitMamba2Config:
    _refuse(config, use_bias=False, use_conv_bias=True, hidden_act="silu")
    limit = tuple(config.time_step_limit)
    if limit != (0.0, float("inf")):
        raise SourceError(f"time_step_limit is {limit}; ours have none, (0.0, inf)")
    same = ("state_size", "expand", "head_dim", "n_groups", "conv_kernel")
    return ImplicitMamba2Config(
        implicit=False,
        rms_norm_eps=config.layer_norm_epsilon,
        **_common(config),
        **{name: getattr(config, name) for name in same},
    )


def _to_mamba2(config: ImplicitMamba2Config) -> Mamba2Config:
    same = ("state_size", "expand", "head_dim", "n_groups", "conv_kernel")
    return Mamba2Config(
        num_heads=config.num_heads,
        layer_norm_epsilon=config.rms_norm_eps,
        **_common(config),
        **{name: getattr(config, name) for name in same},
    )


def _refuse(config: Any, **needed: Any) -> None:
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise SourceError(
                f"{name} is {getattr(config, name)!r} in the source; ours have {value!r}"
            )


def _llama_rules(config: ImplicitLlamaConfig) -> list[_Rule]:
    rules: list[_Rule] = [
        _Same("model.embed_tokens.weight", "model.embed_tokens.weight"),
        _Same("model.stack.norm", "model.norm.weight"),
        _Same("lm_head.weight", "lm_head.weight"),
    ]
    for layer in range(config.num_hidden_layers):
        ours, theirs = f"model.stack.blocks.{layer}", f"model.layers.{layer}"
        attention = [f"{theirs}.self_attn.{name}_proj.weight" for name in "qkv"]
        gate_up = [f"{theirs}.mlp.{name}_proj.weight" for name in ("gate", "up")]
        rules += [
            _Same(f"{ours}.norm", f"{theirs}.input_layernorm.weight"),
            _Same(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm.weight"),
            _Joined(f"{ours}.mixer.qkv_proj.weight", tuple(attention)),
            _Same(f"{ours}.mixer.out_proj.weight", f"{theirs}.self_attn.o_proj.weight"),
            _Joined(f"{ours}.feed_forward.gate_up_proj.weight", tuple(gate_up)),
            _Same(f"{ours}.feed_forward.down_proj.weight", f"{theirs}.mlp.down_proj.weight"),
        ]
    return rules


def _mamba2_rules(config: ImplicitMamba2Config) -> list[_Rule]:
    rules: list[_Rule] = [
        _Same("model.embed_tokens.weight", "backbone.embeddings.weight"),
        _Same("model.stack.norm", "backbone.norm_f.weight"),
        _Same("lm_head.weight", "lm_head.weight"),
    ]
    for layer in range(config.num_hidden_layers):
        ours, theirs = f"model.stack.blocks.{layer}", f"backbone.layers.{layer}"
        mixer, peer = f"{ours}.mixer", f"{theirs}.mixer"
        rules += [
            _Same(f"{ours}.norm", f"{theirs}.norm.weight"),
            _Same(
                f"{mixer}.conv1d.weight",
                f"{peer}.conv1d.weight",
                their_shape=lambda tensor: tensor[:, None],
                our_shape=lambda tensor: tensor[:, 0],
            ),
            _Same(f"{mixer}.conv1d_bias", f"{peer}.conv1d.bias"),
            _Same(f"{mixer}.norm", f"{peer}.norm.weight"),
            *(_Same(f"{mixer}.{name}", f"{peer}.{name}") for name in ("dt_bias", "A_log", "D")),
            *(
                _Same(f"{mixer}.{name}.weight", f"{peer}.{name}.weight")
                for name in ("in_proj", "out_proj")
            ),
        ]
    return rules
