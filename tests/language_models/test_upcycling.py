"""One self-iteration of an upcycled model is its source; and what cannot be upcycled is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    PreTrainedModel,
)

from implicit_models.equilibrium.phase import bounded_phase, free_phase
from implicit_models.families import upcycling
from implicit_models.families.upcycling import upcycle
from implicit_models.language_models.pretrained import ModelFileError
from implicit_models.language_models.serialisation import load_model
from implicit_models.language_models.source_names import SourceError
from implicit_models.language_models.sources import load_source
from tests.language_models.kinds import EXPLICIT, IMPLICIT, mask_of, model_of, tokens
from tests.language_models.test_generation import tokenizer

ONE = bounded_phase(1)
OURS = [
    (kind, changes)
    for kind in EXPLICIT
    for changes in (
        {},
        {"weight_normalisation": True, "tie_word_embeddings": False},
        {"pad_vocab_size_multiple": 8},
    )
]


def their_model(family: str, tied: bool) -> PreTrainedModel:
    torch.manual_seed(0)
    common: dict[str, Any] = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2}
    common |= {"tie_word_embeddings": tied, "initializer_range": 0.2}
    common |= {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    if family == "llama":
        sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24}
        return LlamaForCausalLM(LlamaConfig(**sizes, **common)).eval()
    sizes = {"state_size": 8, "head_dim": 8, "num_heads": 4, "n_groups": 2, "chunk_size": 4}
    return Mamba2ForCausalLM(Mamba2Config(**sizes, **common)).eval()


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "changes"), OURS)
@torch.no_grad()
def test_one_iteration_is_our_source_to_the_bit(
    kind: str, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    source = model_of(kind, dtype=dtype, **changes)
    model = upcycle(source)
    assert type(model) is type(source) and model.is_implicit and not model.training
    assert model.dtype == dtype and model.config.start == "embeddings"
    text, mask = tokens(3, 9), mask_of([(0, 9), (4, 9), (0, 2)], 9)
    assert torch.equal(model(text, phase=ONE).logits, source(text).logits)
    there = mask.bool()
    found = model(text, attention_mask=mask, phase=ONE).logits
    assert torch.equal(found[there], source(text, attention_mask=mask).logits[there])
    two = model(text, phase=bounded_phase(2)).logits
    assert not torch.equal(two, source(text).logits)
    for name, weight in source.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    assert tied == source.config.tie_word_embeddings


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "mamba2"])
def test_one_iteration_is_their_model(family: str, tied: bool) -> None:
    source = their_model(family, tied)
    model = upcycle(source)
    text = tokens(3, 9)
    found = model(text, labels=text, phase=ONE)
    expected = source(text, labels=text)
    assert_near(found.logits, expected.logits)
    assert_near(found.loss, expected.loss)
    found.loss.backward()
    expected.loss.backward()
    ours = model.get_parameter("model.stack.norm").grad
    name = "model.norm.weight" if family == "llama" else "backbone.norm_f.weight"
    theirs = source.get_parameter(name).grad
    assert ours is not None and theirs is not None
    assert_near(ours, theirs)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "vocab_size"):
        assert getattr(model.config, name) == getattr(source.config, name)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("kind", EXPLICIT)
def test_training_reaches_the_injection(kind: str, normalised: bool) -> None:
    model = upcycle(model_of(kind, weight_normalisation=normalised), seed=1).train()
    injection = model.model.injection
    assert injection is not None
    assert not injection.projection.effective().any() and not injection.bias.any()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for phase in (bounded_phase(2), free_phase(0.05, 5, 2, 0.8)):
        text = tokens(2, 6)
        model(text, labels=text, phase=phase).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    assert injection.projection.effective().abs().max() > 0 and injection.bias.any()


@pytest.mark.parametrize("kind", EXPLICIT)
def test_the_seed_draws_the_injections_direction_alone(kind: str) -> None:
    source = model_of(kind, weight_normalisation=True)
    first, same, other = (upcycle(source, seed=seed).state_dict() for seed in (1, 1, 2))
    for name, weight in first.items():
        assert torch.equal(weight, same[name])
        assert torch.equal(weight, other[name]) == (name != "model.injection.projection.weight")


@pytest.mark.parametrize("kind", EXPLICIT)
@torch.no_grad()
def test_the_search_starts_from_the_embeddings(kind: str) -> None:
    model = upcycle(model_of(kind))
    text = tokens(2, 5)
    cell, start = model.cell(text)
    assert torch.equal(start, model.get_input_embeddings()(text))
    logits = model(text, phase=ONE, use_cache=False).logits
    assert torch.equal(model.lm_head(cell(start)), logits)


# The command


@pytest.mark.parametrize("family", ["llama", "mamba2"])
@torch.no_grad()
def test_the_command_writes_a_whole_folder(family: str, tmp_path: Path) -> None:
    source = their_model(family, tied=False)
    source.save_pretrained(tmp_path / "source")
    words = tokenizer()
    words.save_pretrained(tmp_path / "source")
    upcycling.main([str(tmp_path / "source"), str(tmp_path / "target")])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    assert model.is_implicit and not model.training
    text = tokens(2, 7)
    assert_near(model(text, phase=ONE).logits, source(text).logits)
    taken = AutoTokenizer.from_pretrained(tmp_path / "target")
    assert taken.get_vocab() == words.get_vocab() and taken.padding_side == "left"
    card = (tmp_path / "target" / "README.md").read_text()
    assert str(tmp_path / "source") in card
    found = model.generate(text, max_new_tokens=2, max_self_iterations=4, do_sample=False)
    assert found.shape == (2, 9)


def refused(capsys: pytest.CaptureFixture[str], source: Path, target: Path) -> str:
    with pytest.raises(SystemExit) as end:
        upcycling.main([str(source), str(target)])
    assert end.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]  # after transformers' progress bars
    assert said.startswith("error: ")
    return said


def test_the_command_refuses_what_it_cannot_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    their_model("llama", tied=True).save_pretrained(source)
    target.mkdir()
    assert "exists; name a folder that does not" in refused(capsys, source, target)
    assert not any(target.iterdir())
    target.rmdir()

    model_of("llama-implicit").save_pretrained(tmp_path / "implicit")
    assert "the model is implicit already" in refused(capsys, tmp_path / "implicit", target)

    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 11}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path / "gpt2")
    said = refused(capsys, tmp_path / "gpt2", target)
    assert "is a GPT2LMHeadModel; it must be transformers' LlamaForCausalLM," in said

    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    said = refused(capsys, source, target)
    assert f"no model can be read from {source}" in said
    weights.unlink()
    assert f"no model can be read from {source}" in refused(capsys, source, target)
    (source / "config.json").write_text("{")
    assert f"no model can be read from {source}" in refused(capsys, source, target)
    assert not target.exists()


@pytest.mark.parametrize("kind", IMPLICIT)
def test_upcycling_twice_is_refused(kind: str) -> None:
    with pytest.raises(SourceError, match="the model is implicit already"):
        upcycle(model_of(kind))


def test_no_pickle_is_read_with_its_code() -> None:
    """torch.load, which runs what a file says, is told not to wherever it is called."""
    root = Path(upcycling.__file__).parents[2]
    folders = [root / name for name in ("implicit_models", "stages", "scripts", "benchmarks")]
    for file in (file for folder in folders for file in folder.rglob("*.py")):
        text = file.read_text()
        calls = re.findall(r"torch\.load\((?:[^()]|\([^()]*\))*\)", text)
        assert len(calls) == text.count("torch.load("), file
        assert all("weights_only=True" in call for call in calls), file
        assert not re.search(r"from pickle |from torch import .*\bload\b", text), file
        # An unpickler of checkpoints' descriptions, which hands nothing real to them.
        allowed = {"pickle.Unpickler"} if file.name == "checkpoint_metadata.py" else set()
        assert set(re.findall(r"\bpickle\.\w+", text)) <= allowed, file


@pytest.fixture(params=["load_source", "load_model"])
def load(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    return {"load_source": lambda folder: load_source(str(folder)), "load_model": load_model}[
        request.param
    ]


def test_weights_that_are_a_pickle_are_refused(tmp_path: Path, load) -> None:
    source = their_model("llama", tied=True)
    source.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.unlink()
    torch.save(source.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises((SourceError, ModelFileError), match=r"model\.safetensors"):
        load(tmp_path)


def test_code_of_a_model_is_not_run_and_nobody_is_asked(
    tmp_path: Path, load, monkeypatch: pytest.MonkeyPatch
) -> None:
    their_model("llama", tied=True).save_pretrained(tmp_path)
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises((SourceError, ModelFileError), match="custom code|trust_remote_code"):
        load(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_an_adapter_that_names_another_model_is_refused(tmp_path: Path, load) -> None:
    their_model("llama", tied=True).save_pretrained(tmp_path)
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "owner/name"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    with pytest.raises((SourceError, ModelFileError), match=r"adapter_config\.json names another"):
        load(tmp_path)
