"""A model's files: whole, strict, and with errors that name the file."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from implicit_models.families.mamba2.configuration import ImplicitMamba2Config
from implicit_models.families.mamba2.family import ImplicitMamba2ForCausalLM
from implicit_models.families.parameters import ModelParameters
from implicit_models.language_models.language_model import num_parameters
from implicit_models.language_models.pretrained import ModelFileError
from implicit_models.language_models.serialisation import load_model, save_model
from implicit_models.parameters import ParameterError
from tests.language_models.models import ALL, small_model, tokens

KINDS = pytest.mark.parametrize("kind", ["implicit mamba2", "explicit llama", "lstm"])
EMBEDDING = {"lstm": "embed_tokens.weight"}
INNER = {
    "implicit mamba2": "model.stack.blocks.1.mixer.in_proj.weight",
    "explicit llama": "model.stack.blocks.1.mixer.qkv_proj.weight",
    "lstm": "lstm.weight_hh_l0",
}


def saved(kind: str, folder: Path) -> Path:
    save_model(small_model(ALL[kind]).float(), folder)
    return folder


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: saved(kind, tmp_path_factory.mktemp("original") / "model") for kind in INNER}


@pytest.fixture
def folder(originals: dict[str, Path], tmp_path: Path, kind: str) -> Path:
    """A model's folder, to be broken."""
    return shutil.copytree(originals[kind], tmp_path / "model")


def change_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors."""
    file = folder / "model.safetensors"
    tensors: dict[str, Any] = load_file(file) | changes
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, file, {"format": "pt"})


def change_configuration(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("kind", ALL)
def test_what_was_saved_is_loaded(tmp_path: Path, kind: str) -> None:
    model = small_model(ALL[kind]).float()
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert type(loaded) is type(model)
    assert not loaded.training
    settings, expected = loaded.config.to_dict(), model.config.to_dict()
    assert settings == expected | {"_name_or_path": settings["_name_or_path"]}
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])
    with torch.no_grad():
        assert torch.equal(model(tokens(2, 5)).logits, loaded(tokens(2, 5)).logits)


@KINDS
def test_saving_again_leaves_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    save_model(load_model(folder), tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_where_a_model_comes_from_is_kept(tmp_path: Path) -> None:
    provenance = {"training": {"seed": 3, "lengths": {"end": 20}}, "tracking": {"run": "abc"}}
    for kind in ("implicit llama", "lstm"):
        save_model(small_model(ALL[kind]).float(), tmp_path, provenance)
        assert load_model(tmp_path).config.provenance == provenance
        card = (tmp_path / "README.md").read_text()
        for line in ("| seed | 3 |", "| lengths.end | 20 |", "| run | abc |"):
            assert line in card


def test_a_card_is_of_the_model_saved_last(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 11, "num_hidden_layers": 1, "num_attention_heads": 2}
    stock = LlamaForCausalLM(LlamaConfig(hidden_size=8, intermediate_size=8, **sizes))
    ours = [small_model(ALL[kind]).float() for kind in ("implicit mamba2", "lstm")]
    for model in (ours[0], stock, ours[1]):
        save_model(model, tmp_path)
        card = (tmp_path / "README.md").read_text()
        assert f"# {type(model).__name__}," in card
        assert f"{num_parameters(model):,} parameters" in card
    ours[0].save_pretrained(tmp_path)
    assert f"# {type(ours[0]).__name__}," in (tmp_path / "README.md").read_text()


def test_a_card_of_an_earlier_version_is_rewritten(tmp_path: Path) -> None:
    models = [small_model(ALL[kind]).float() for kind in ("lstm", "explicit llama")]
    earlier = "---\nlibrary_name: transformers\n---\n\n# LSTMLanguageModel, explicit\n\n"
    card = tmp_path / "README.md"
    card.write_text(f"{earlier}1,234 parameters, a tied head counted once.\n\n```python\n")
    save_model(models[0], tmp_path)
    assert f"{num_parameters(models[0]):,} parameters" in card.read_text()
    lines = [line for line in card.read_text().splitlines() if not line.startswith("<!--")]
    card.write_text("\n".join(lines))  # without the mark a card of this version stays
    save_model(models[1], tmp_path)
    assert card.read_text() == "\n".join(lines)


@pytest.mark.parametrize("content", [b"# My own words\n", b"\xff\xfe of another encoding \xe9"])
def test_a_card_that_is_not_ours_stays(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "README.md").write_bytes(content)
    model = small_model(ALL["explicit llama"]).float()
    model.save_pretrained(tmp_path)
    save_model(model, tmp_path)
    assert (tmp_path / "README.md").read_bytes() == content


@KINDS
def test_missing_and_broken_files_are_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for length in (0, 5, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=f"{folder}.* cannot be read"):
            load_model(folder)
    weights.unlink()
    with pytest.raises(ModelFileError, match="model.safetensors is missing; a model is config"):
        load_model(folder)
    weights.write_bytes(whole)
    configuration = folder / "config.json"
    configuration.write_text(configuration.read_text()[:-10])
    with pytest.raises(ModelFileError, match="config.json"):
        load_model(folder)
    configuration.unlink()
    with pytest.raises(ModelFileError, match="config.json is missing"):
        load_model(folder)


@KINDS
def test_weights_that_do_not_fit_are_listed(folder: Path, kind: str) -> None:
    inner, embedding = INNER[kind], EMBEDDING.get(kind, "model.embed_tokens.weight")
    weight = load_file(folder / "model.safetensors")[inner]

    change_weights(folder, **{inner: None})
    with pytest.raises(ModelFileError, match=f"the weights in .*: missing: {inner}$"):
        load_model(folder)
    change_weights(folder, **{embedding: None})
    with pytest.raises(ModelFileError, match=f"missing: .*{embedding}, .*{inner}"):
        load_model(folder)

    change_weights(folder, **{inner: weight, embedding: torch.zeros(11, 16)})
    load_model(folder)
    change_weights(folder, surplus=torch.zeros(2), another=torch.zeros(1))
    with pytest.raises(ModelFileError, match="the weights in .*: unexpected: another, surplus$"):
        load_model(folder)

    change_weights(folder, surplus=None, another=None, **{inner: weight[:, :-1].clone()})
    with pytest.raises(ModelFileError, match=f"mismatched: {inner} .found.*needed"):
        load_model(folder)


@KINDS
def test_wrong_configurations_are_named(folder: Path) -> None:
    change_configuration(folder, hidden_sizes=16)
    with pytest.raises(ModelFileError, match="no key 'hidden_sizes'.*did you mean hidden_size"):
        load_model(folder)
    original = json.loads((folder / "config.json").read_text())
    del original["hidden_sizes"]
    for changes, named in (
        ({"hidden_size": 0}, "hidden_size is 0; it must be at least 1"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"model_type": "mamba3"}, "mamba3"),
    ):
        (folder / "config.json").write_text(json.dumps(original | changes))
        with pytest.raises(ModelFileError, match=named):
            load_model(folder)


def test_another_familys_files_are_refused(tmp_path: Path) -> None:
    llama, mamba2 = (
        saved("implicit llama", tmp_path / "a"),
        saved("implicit mamba2", tmp_path / "b"),
    )
    for reader in (ImplicitMamba2ForCausalLM, ImplicitMamba2Config):
        with pytest.raises(ValueError, match="model_type is 'implicit_llama'; a ImplicitMamba2Con"):
            reader.from_pretrained(llama)
    shutil.copy(llama / "model.safetensors", mamba2)
    match = "missing: .*1.mixer.in_proj.weight.*; unexpected: .*1.mixer.qkv_proj.weight"
    with pytest.raises(ModelFileError, match=match):
        load_model(mamba2)


def test_an_explicit_models_weights_lack_the_injection(tmp_path: Path) -> None:
    change_configuration(saved("explicit llama", tmp_path), implicit=True)
    with pytest.raises(ModelFileError, match="missing: model.injection.bias, model.injection.norm"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"family": "mamba3"}, "family"),
        ({"d_state": None}, "d_state is missing"),
        ({"head_dim": 7}, "head_dim is 7; it must divide expand . d_model = 32"),
        ({"num_groups": 3}, "num_groups is 3"),
        ({"hidden_size": 4}, "hidden_size is 4"),
        ({"num_heads": 4}, "num_heads is 4; a model of family mamba2 has none"),
        ({"family": "lstm"}, "implicit is true"),
        ({"family": "upcycled", "implicit": False}, "implicit is false"),
        ({"family": "huggingface", "implicit": False}, "source is missing"),
        (
            {"family": "lstm", "implicit": False, "hidden_size": 4},
            "d_state is 4; a model of family lstm has none",
        ),
    ],
)
def test_impossible_models_are_named(changes: dict[str, Any], named: str) -> None:
    sizes: dict[str, Any] = {"num_layers": 1, "d_model": 16, "d_state": 4, "head_dim": 8}
    with pytest.raises(ParameterError, match=named):
        ModelParameters(**({"family": "mamba2", "implicit": True} | sizes | changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_heads": None}, "num_heads is missing; a model of family llama needs it"),
        ({"num_heads": 3}, "num_heads is 3; it must divide d_model = 16"),
        ({"head_dim": 5}, "head_dim is 5; it must be even"),
        ({"num_heads": 16, "num_key_value_heads": 1}, "; it must be even"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide num_heads = 4"),
        ({"d_state": 8}, "d_state is 8; a model of family llama has none"),
    ],
)
def test_impossible_llamas_are_named(changes: dict[str, Any], named: str) -> None:
    sizes: dict[str, Any] = {"num_layers": 1, "d_model": 16, "num_heads": 4, "d_feed_forward": 24}
    with pytest.raises(ParameterError, match=named):
        ModelParameters(**({"family": "llama"} | sizes | changes))
