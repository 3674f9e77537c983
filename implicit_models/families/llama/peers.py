"""transformers' models that have the weights of our explicit Llama."""

from typing import Any

from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.peer import Joined, Peer, Rule, Same, common_fields, refuse
from implicit_models.language_models.source_names import SourceError


class LlamaPeer(Peer):
    """transformers' Llama."""

    model_class = LlamaForCausalLM

    def is_like(self, config: ImplicitLlamaConfig) -> bool:
        """Return whether a token attends to all before it."""
        return config.rope and config.sliding_window is None

    def our_configuration(self, config: LlamaConfig) -> ImplicitLlamaConfig:
        """Return the configuration of our explicit model; see `Peer`."""
        refuse(config, attention_bias=False, mlp_bias=False, hidden_act="silu")
        return ImplicitLlamaConfig(implicit=False, **_same_fields(config))

    def their_configuration(self, config: ImplicitLlamaConfig) -> LlamaConfig:
        """Return the configuration of transformers that means the same."""
        return LlamaConfig(**_same_fields(config))

    def rules(self, config: ImplicitLlamaConfig) -> list[Rule]:
        """Return which of our weights is which of theirs."""
        rules: list[Rule] = [
            Same("model.embed_tokens.weight", "model.embed_tokens.weight"),
            Same("model.stack.norm", "model.norm.weight"),
            Same("lm_head.weight", "lm_head.weight"),
        ]
        for layer in range(config.num_hidden_layers):
            ours, theirs = f"model.stack.blocks.{layer}", f"model.layers.{layer}"
            attention = [f"{theirs}.self_attn.{name}_proj.weight" for name in "qkv"]
            gate_up = [f"{theirs}.mlp.{name}_proj.weight" for name in ("gate", "up")]
            rules += [
                Same(f"{ours}.norm", f"{theirs}.input_layernorm.weight"),
                Same(f"{ours}.feed_forward_norm", f"{theirs}.post_attention_layernorm.weight"),
                Joined(f"{ours}.mixer.qkv_proj.weight", tuple(attention)),
                Same(f"{ours}.mixer.out_proj.weight", f"{theirs}.self_attn.o_proj.weight"),
                Joined(f"{ours}.feed_forward.gate_up_proj.weight", tuple(gate_up)),
                Same(f"{ours}.feed_forward.down_proj.weight", f"{theirs}.mlp.down_proj.weight"),
            ]
        return rules


class MistralPeer(LlamaPeer):
    """transformers' Mistral: a Llama whose tokens may attend to a window."""

    model_class = MistralForCausalLM

    def is_like(self, config: ImplicitLlamaConfig) -> bool:
        """Return whether a token attends to a window, and to nothing before a text."""
        return config.rope and config.sliding_window is not None and not config.pad_window

    def our_configuration(self, config: MistralConfig) -> ImplicitLlamaConfig:
        """Return the configuration of our explicit model; see `Peer`."""
        refuse(config, hidden_act="silu")
        window = config.sliding_window
        return ImplicitLlamaConfig(implicit=False, sliding_window=window, **_same_fields(config))

    def their_configuration(self, config: ImplicitLlamaConfig) -> MistralConfig:
        """Return the configuration of transformers that means the same."""
        return MistralConfig(sliding_window=config.sliding_window, **_same_fields(config))


class SmolLM3Peer(LlamaPeer):
    """transformers' SmolLM3: a Llama whose layers may go without rotary positions."""

    model_class = SmolLM3ForCausalLM

    def is_like(self, config: ImplicitLlamaConfig) -> bool:
        """Return whether there are no rotary positions."""
        return not config.rope and config.sliding_window is None

    def our_configuration(self, config: SmolLM3Config) -> ImplicitLlamaConfig:
        """Return the configuration of our explicit model; see `Peer`."""
        refuse(config, attention_bias=False, mlp_bias=False, hidden_act="silu")
        refuse(config, use_sliding_window=False)
        assert config.no_rope_layers is not None  # transformers fills it in
        layers = config.no_rope_layers[: config.num_hidden_layers]
        if len(set(layers)) > 1:
            raise SourceError(
                f"no_rope_layers is {layers} in the source; ours have rotary positions in all "
                "layers (1) or in none (0)"
            )
        return ImplicitLlamaConfig(implicit=False, rope=all(layers), **_same_fields(config))

    def their_configuration(self, config: ImplicitLlamaConfig) -> SmolLM3Config:
        """Return the configuration of transformers that means the same."""
        layers = [0] * config.num_hidden_layers
        return SmolLM3Config(no_rope_layers=layers, **_same_fields(config))


def _same_fields(config: Any) -> dict[str, Any]:
    names = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
    names += ("max_position_embeddings", "rope_parameters", "rms_norm_eps")
    found = common_fields(config) | {name: getattr(config, name) for name in names}
    return found | {"head_dim": getattr(config, "head_dim", None)}  # SmolLM3's may have none
