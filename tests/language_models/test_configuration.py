"""Configurations: strict, whole in their file, and of one family each."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.llama.family import ImplicitLlamaForCausalLM
from implicit_models.families.lstm.configuration import LSTMConfig
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.families.mamba2.family import ImplicitMamba2ForCausalLM
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.language_models.pretrained import ModelFileError
from implicit_models.language_models.serialisation import load_model
from tests.language_models.kinds import KINDS, configuration, model_of

every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize(
    ("config", "key", "meant"),
    [
        (ImplicitLlamaConfig, "hidden_sise", r" \(did you mean hidden_size\?\)"),
        (ImplicitLlamaConfig, "state_size", ".*"),
        (ImplicitLlamaConfig, "attention_bias", ".*"),
        (ImplicitMamba2Config, "tolerence", r" \(did you mean tolerance\?\)"),
        (ImplicitMamba2Config, "num_attention_heads", ".*"),
        (ImplicitMamba2Config, "rope_theta", ".*"),
        (ImplicitMamba2Config, "quux", ""),
        (LSTMConfig, "implicit", ".*"),
    ],
)
def test_unknown_keys_are_named(config: type[ImplicitConfig], key: str, meant: str) -> None:
    match = f"{config.__name__} has no key '{key}'{meant}; allowed are .*vocab_size"
    with pytest.raises(ValueError, match=match):
        config(**{key: 3})
    with pytest.raises(ValueError, match=match):
        config.from_dict({"model_type": config.model_type, key: 3})


@every_kind
def test_an_unknown_key_in_a_file_is_named(kind: str, tmp_path: Path) -> None:
    model_of(kind).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())
    for key, value, match in (
        ("widow", 3, "has no key 'widow' .did you mean window"),
        ("hidden_size", 0, "hidden_size is 0; it must be at least 1"),
        ("hidden_size", "wide", "hidden_size.*expected int, got str"),
    ):
        file.write_text(json.dumps(settings | {key: value}))
        for read in (AutoConfig.from_pretrained, AutoModelForCausalLM.from_pretrained):
            with pytest.raises((ValueError, StrictDataclassError), match=match):
                read(tmp_path)
        with pytest.raises(ModelFileError, match=match):
            load_model(tmp_path)


@pytest.mark.parametrize(
    ("kind", "changes", "match"),
    [
        ("llama", {"num_attention_heads": 3}, "num_attention_heads is 3; .* hidden_size = 16"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads is 3; .*attention_heads = 4"),
        ("llama", {"num_key_value_heads": 0}, "num_key_value_heads is 0; it must be at least 1"),
        ("llama", {"head_dim": 7}, "head_dim is 7; it must be even"),
        ("llama", {"head_dim": 7, "rope": False}, "head_dim is 7; it must be even"),
        ("llama", {"intermediate_size": 0}, "intermediate_size is 0"),
        ("llama", {"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ("llama", {"rope_theta": -1.0}, "rope_theta is -1.0; it must be positive"),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "rope_type is 'longrope'"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic"}}, "rope_type is 'dynamic'"),
        *(
            ("llama", {"rope_parameters": {"rope_type": kind, **needed, key: 0.5}}, match)
            for kind, needed in (
                ("default", {}),
                ("linear", {"factor": 2.0}),
                ("yarn", {"factor": 2.0, "original_max_position_embeddings": 8}),
            )
            for key, match in (
                ("rope_tehta", f"has no key 'rope_tehta' under rope_type '{kind}'; allowed are"),
                ("partial_rotary_factor", "has no key 'partial_rotary_factor'"),
                ("low_freq_factor", "has no key 'low_freq_factor'"),
            )
        ),
        ("llama", {"pad_window": True}, "pad_window is True and sliding_window None"),
        ("llama", {"pad_window": True, "sliding_window": 1}, "sliding_window 1; .* at least 2"),
        ("mamba2", {"head_dim": 5}, r"head_dim is 5; it must divide expand \* hidden_size = 32"),
        ("mamba2", {"n_groups": 3}, "n_groups is 3; it must divide the number of heads, .* = 4"),
        ("mamba2", {"conv_kernel": 0}, "conv_kernel is 0"),
        ("mamba2", {"chunk_size": -2}, "chunk_size is -2"),
        ("mamba2", {"expand": 1.5}, "expected int, got float"),
        *(
            (family, changes, match)
            for family in ("llama", "mamba2")
            for changes, match in (
                ({"hidden_size": 0}, "hidden_size is 0; it must be at least 1"),
                ({"hidden_size": "16"}, "expected int, got str"),
                ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
                ({"vocab_size": -1}, "vocab_size is -1"),
                ({"pad_vocab_size_multiple": 0}, "pad_vocab_size_multiple is 0"),
                ({"rms_norm_eps": 0.0}, "rms_norm_eps is 0.0; it must be positive"),
                ({"initializer_range": -0.1}, "initializer_range is -0.1; it must be positive"),
                ({"tolerance": 0.0}, "tolerance is 0.0; it must lie between 0 and 1"),
                ({"training_tolerance": 1.0}, "training_tolerance is 1.0"),
                ({"damping": 2.0}, "damping is 2.0; it must lie between 0 and 2"),
                ({"window": 0}, "window is 0"),
                ({"patience": 0}, "patience is 0"),
                ({"phantom_steps": 0}, "phantom_steps is 0"),
                ({"phantom_steps": None}, "phantom_steps is None and gradient is 'phantom'"),
                ({"unrolled_steps": 0}, "unrolled_steps is 0"),
                ({"gradient": "unrolled", "damping": 1.0}, "unrolled_steps is None"),
                (
                    {"gradient": "unrolled", "unrolled_steps": 2, "damping": 0.8},
                    "damping is 0.8 and gradient is 'unrolled', .* must be 1.0",
                ),
                ({"solver": "newton"}, "expected one of .'picard', 'anderson', 'broyden'"),
                ({"max_self_iterations": 0}, "max_self_iterations is 0"),
                ({"label_alignment": "shifted"}, "expected one of .'next_token', 'aligned'"),
                ({"start": "ones"}, "expected one of .'zeros', 'embeddings'"),
                ({"training_phase": "implicit"}, "expected one of .'free', 'bounded'"),
                ({"implicit": "no"}, "expected bool, got str"),
            )
        ),
    ],
)
def test_impossible_values_are_named(kind: str, changes: dict[str, Any], match: str) -> None:
    with pytest.raises((ValueError, StrictDataclassError), match=match):
        configuration(f"{kind}-implicit", **changes)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"hidden_size": 0}, "hidden_size is 0; it must be at least 1"),
        ({"initializer_range": 0.0}, "initializer_range is 0.0; it must be positive"),
        ({"initializer_range": -0.1}, "initializer_range is -0.1; it must be positive"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False; .* takes True"),
    ],
)
def test_impossible_lstms_are_named(changes: dict[str, Any], match: str) -> None:
    with pytest.raises((ValueError, StrictDataclassError), match=match):
        LSTMConfig(**changes)


@every_kind
def test_a_configuration_survives_its_file(kind: str, tmp_path: Path) -> None:
    config = configuration(
        kind,
        label_alignment="aligned",
        start="embeddings",
        tie_word_embeddings=False,
        pad_vocab_size_multiple=8,
        eos_token_id=[1, 2],
        provenance={"training": {"seed": 3}},
    )
    config.save_pretrained(tmp_path)
    for read in (type(config).from_pretrained, AutoConfig.from_pretrained):
        found = read(tmp_path)
        assert type(found) is type(config)
        assert found.to_dict() | {"_name_or_path": ""} == config.to_dict()
    assert type(config).from_dict(config.to_dict()).to_dict() == config.to_dict()
    assert copy.deepcopy(config).to_dict() == config.to_dict()
    assert type(AutoModelForCausalLM.from_config(config)) is type(model_of(kind))
    assert AutoConfig.from_pretrained(tmp_path, tolerance=0.5).tolerance == 0.5
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["implicit"] is kind.endswith("-implicit")


@every_kind
def test_a_quantised_models_configuration_is_read(kind: str) -> None:
    config = configuration(kind)
    quantised = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    settings = config.to_dict() | {"quantization_config": quantised}
    assert type(config).from_dict(settings).quantization_config == quantised


@pytest.mark.parametrize("config", [ImplicitLlamaConfig, ImplicitMamba2Config, LSTMConfig])
def test_attention_maps_are_refused(config: type[ImplicitConfig]) -> None:
    match = "output_attentions is True; these models keep no attention maps"
    with pytest.raises(ValueError, match=match):
        config(output_attentions=True)
    for settings, changes in (({"output_attentions": True}, {}), ({}, {"output_attentions": True})):
        with pytest.raises(ValueError, match=match):
            config.from_dict(settings, **changes)
    found = config(output_attentions=False)
    with pytest.raises(ValueError, match=match):
        found.output_attentions = True
    assert found.output_attentions is False


def test_defaults_follow_from_other_fields() -> None:
    config = ImplicitLlamaConfig(hidden_size=48, num_attention_heads=6)
    assert (config.num_key_value_heads, config.head_dim) == (6, 8)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 500_000.0}
    old = ImplicitLlamaConfig(rope_theta=1e4)  # as files of transformers 4 have it
    assert old.rope_parameters == {"rope_type": "default", "rope_theta": 1e4}
    assert ImplicitMamba2Config(hidden_size=64, head_dim=16, expand=3).num_heads == 12
    for multiple, rows in ((1, 31), (8, 32), (31, 31), (64, 64)):
        assert configuration(KINDS[0], pad_vocab_size_multiple=multiple).num_embeddings == rows


def test_another_family_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    theirs = LlamaForCausalLM(LlamaConfig(vocab_size=11, intermediate_size=8, **sizes))
    theirs.save_pretrained(tmp_path / "theirs")
    match = "model_type is 'llama'; a ImplicitLlamaConfig has 'implicit_llama'.*upcycling"
    for read in (ImplicitLlamaConfig, ImplicitLlamaForCausalLM):
        with pytest.raises(ValueError, match=match):
            read.from_pretrained(tmp_path / "theirs")
    model_of("mamba2-explicit").save_pretrained(tmp_path / "mamba2")
    for read in (ImplicitLlamaConfig, ImplicitLlamaForCausalLM):
        with pytest.raises(ValueError, match="model_type is 'implicit_mamba2'; a ImplicitLlamaC"):
            read.from_pretrained(tmp_path / "mamba2")
    with pytest.raises(ValueError, match="model_type is 'llama'; a ImplicitMamba2Config has"):
        ImplicitMamba2ForCausalLM.from_pretrained(tmp_path / "theirs")
