"""The paper's sizes, counted in closed form, on the meta device, and as transformers' models."""

import sys
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig, LlamaForCausalLM, Mamba2Config, Mamba2ForCausalLM

from implicit_models.families.llama.configuration import ImplicitLlamaConfig
from implicit_models.families.llama.family import ImplicitLlamaForCausalLM
from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.families.mamba2.family import ImplicitMamba2ForCausalLM
from implicit_models.families.sizes import SIZES, count_parameters, from_size, main, size_table
from implicit_models.language_models.configuration import ImplicitConfig
from implicit_models.language_models.modelling import ImplicitForCausalLM
from tests.language_models.kinds import KINDS, configuration

# PAPER.md: layers and width; for Llama the width of SwiGLU (2/3 of d_ff, in 64s) and the heads.
PAPER = {
    "mamba2-130m": (24, 768),
    "mamba2-350m": (48, 1024),
    "mamba2-760m": (48, 1536),
    "mamba2-1.3b": (48, 2048),
    "llama-130m": (12, 768, 2048, 12),
    "llama-350m": (24, 1024, 2752, 16),
    "llama-760m": (24, 1536, 4096, 16),
    "llama-1.3b": (24, 2048, 5504, 32),
}
VARIANTS: list[dict[str, Any]] = [
    {"implicit": True},
    {"implicit": False, "tie_word_embeddings": False, "pad_vocab_size_multiple": 64},
    {"implicit": True, "weight_normalisation": True, "pad_vocab_size_multiple": 8},
    {"implicit": False, "weight_normalisation": True, "tie_word_embeddings": False},
]


def on_meta(config: ImplicitConfig) -> ImplicitForCausalLM:
    with torch.device("meta"):
        if isinstance(config, ImplicitLlamaConfig):
            return ImplicitLlamaForCausalLM(config)
        assert isinstance(config, ImplicitMamba2Config)
        return ImplicitMamba2ForCausalLM(config)


def assert_counted(config: ImplicitConfig) -> None:
    model, count = on_meta(config), count_parameters(config)
    found = {"embedding": 0, "stack": 0, "injection": 0}
    for name, parameter in model.named_parameters():
        part = name.removeprefix("model.").split(".")[0]
        found[part if part in found else "embedding"] += parameter.numel()
    assert vars(count) == found
    assert count.total == sum(found.values()) == sum(p.numel() for p in model.parameters())
    assert count.non_embedding == found["stack"] + found["injection"]
    assert (count.injection == 0) == (not config.implicit)


@pytest.mark.parametrize("name", SIZES)
def test_the_closed_formula_counts_what_the_model_has(name: str) -> None:
    for variant in VARIANTS:
        assert_counted(from_size(name, num_hidden_layers=3, **variant))
    assert_counted(from_size(name))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_formula_holds_for_odd_sizes(kind: str, normalised: bool, tied: bool) -> None:
    changes: dict[str, Any] = {"conv_kernel": 3, "expand": 3}
    if kind.startswith(("llama", "sliding", "padded")):
        changes = {"head_dim": 6, "num_key_value_heads": 1, "intermediate_size": 17}
    changes |= {"weight_normalisation": normalised, "tie_word_embeddings": tied}
    for multiple in (1, 7):
        assert_counted(configuration(kind, pad_vocab_size_multiple=multiple, **changes))


@pytest.mark.parametrize("name", SIZES)
def test_explicit_sizes_are_those_of_transformers_models(name: str) -> None:
    layers, width, *rest = PAPER[name]
    common: dict[str, Any] = {"vocab_size": 50_277, "hidden_size": width}
    common |= {"num_hidden_layers": layers, "tie_word_embeddings": True}
    with torch.device("meta"):
        if name.startswith("llama"):
            hidden, heads = rest
            peer: Any = LlamaForCausalLM(
                LlamaConfig(num_attention_heads=heads, intermediate_size=hidden, **common)
            )
        else:
            sizes = {"state_size": 128, "head_dim": 64, "n_groups": 1}
            peer = Mamba2ForCausalLM(Mamba2Config(num_heads=2 * width // 64, **sizes, **common))
    expected = sum(parameter.numel() for parameter in peer.parameters())
    assert count_parameters(from_size(name, implicit=False)).total == expected


@pytest.mark.parametrize("name", SIZES)
def test_the_names_mean_what_the_paper_says(name: str) -> None:
    config = from_size(name)
    assert config.implicit and config.vocab_size == 50_277
    assert (config.num_hidden_layers, config.hidden_size) == PAPER[name][:2]
    if isinstance(config, ImplicitLlamaConfig):
        assert (config.intermediate_size, config.num_attention_heads) == PAPER[name][2:]
        assert config.rope_parameters == {"rope_type": "default", "rope_theta": 500_000.0}
    else:
        assert isinstance(config, ImplicitMamba2Config)
        assert (config.state_size, config.expand, config.head_dim) == (128, 2, 64)
    nominal = {"130m": 130e6, "350m": 350e6, "760m": 760e6, "1.3b": 1300e6}[name.split("-")[1]]
    assert abs(count_parameters(config).total / nominal - 1) < 0.2
    changed = from_size(name, vocab_size=100, num_hidden_layers=1, implicit=False)
    assert (changed.vocab_size, changed.num_hidden_layers, changed.implicit) == (100, 1, False)


def test_an_unknown_size_is_named() -> None:
    with pytest.raises(ValueError, match=r"'mamba-1.3b' is no size \(did you mean 'mamba2-1.3b'"):
        from_size("mamba-1.3b")
    with pytest.raises(ValueError, match="'gigantic' is no size; there are mamba2-130m, .*1.3b"):
        from_size("gigantic")
    with pytest.raises(ValueError, match="has no key 'layers'"):
        from_size("mamba2-130m", layers=3)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("factor", [0.25, 0.5, 2])
def test_another_width_keeps_the_proportions(name: str, factor: float) -> None:
    size = from_size(name)
    config = from_size(name, hidden_size=int(factor * size.hidden_size))
    for field in ("num_hidden_layers", "vocab_size", "head_dim"):
        assert getattr(config, field) == getattr(size, field), field
    heads = "num_attention_heads" if isinstance(size, ImplicitLlamaConfig) else "num_heads"
    assert getattr(config, heads) == factor * getattr(size, heads)
    if isinstance(size, ImplicitLlamaConfig):
        assert isinstance(config, ImplicitLlamaConfig)
        assert config.num_key_value_heads == config.num_attention_heads
        assert 0 <= config.intermediate_size - 8 * config.hidden_size / 3 < 64
    else:
        assert isinstance(size, ImplicitMamba2Config) and isinstance(config, ImplicitMamba2Config)
        assert (config.state_size, config.expand) == (size.state_size, size.expand)
    assert_counted(from_size(name, hidden_size=size.hidden_size // 2, num_hidden_layers=1))


def test_what_is_given_is_not_made_to_follow() -> None:
    config = from_size("llama-130m", hidden_size=96, num_attention_heads=3, intermediate_size=100)
    assert isinstance(config, ImplicitLlamaConfig)
    assert (config.num_attention_heads, config.head_dim, config.intermediate_size) == (3, 32, 100)
    config = from_size("llama-130m", head_dim=32)
    assert isinstance(config, ImplicitLlamaConfig)
    assert (config.num_attention_heads, config.intermediate_size) == (24, 2048)


@pytest.mark.parametrize(
    ("name", "changes", "answer"),
    [
        ("llama-130m", {"hidden_size": 100}, "hidden_size is 100 and a head's width 64; .*given"),
        ("llama-760m", {"hidden_size": 128}, "hidden_size is 128 and a head's width 96; "),
        ("llama-130m", {"head_dim": 50}, "hidden_size is 768 and a head's width 50; "),
        ("llama-130m", {"hidden_size": 100, "num_attention_heads": 3}, "is 3; it must divide hid"),
        ("llama-130m", {"hidden_size": 128, "num_key_value_heads": 4}, "is 4; it must divide num"),
        ("llama-130m", {"hidden_size": 0}, "hidden_size is 0; it must be at least 1"),
        ("llama-130m", {"hidden_size": "128"}, "hidden_size.*int"),
        ("mamba2-130m", {"hidden_size": 100}, "head_dim is 64; .* expand . hidden_size = 200"),
        ("mamba2-130m", {"head_dim": 100}, "head_dim is 100; .* expand . hidden_size = 1536"),
        ("mamba2-130m", {"hidden_size": 128, "n_groups": 3}, "n_groups is 3; .* heads, .* = 4"),
        ("mamba2-130m", {"hidden_size": 0}, "hidden_size is 0; it must be at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_one_error(name: str, changes: dict, answer: str) -> None:
    with pytest.raises((ValueError, StrictDataclassError), match=answer):
        from_size(name, **changes)


def test_the_table_prints_what_is_counted() -> None:
    rows = size_table().splitlines()[2:]
    assert len(rows) == len(SIZES) == 8
    for row, name in zip(rows, SIZES, strict=True):
        count = count_parameters(from_size(name))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[0] == name
        assert int(cells[1].replace(",", "")) == count.total
        assert int(cells[2].replace(",", "")) == count.non_embedding
        assert int(cells[3].split(" ")[0].replace(",", "")) == count.injection


def test_the_table_is_drawn_on_a_terminal_alone(capsys, monkeypatch):
    main([])
    assert capsys.readouterr().out == f"{size_table()}\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    main([])
    drawn = capsys.readouterr().out
    assert "mamba2-1.3b" in drawn and "|" not in drawn and "--:" not in drawn
