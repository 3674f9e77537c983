"""A model's files: whole, strict, and with errors that name the file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from implicit_models.language_models.parameters import ModelParameters
from implicit_models.language_models.serialisation import ModelFileError, load_model, save_model
from implicit_models.parameters import ParameterError
from tests.language_models.models import EXPLICIT, IMPLICIT, LSTM, small_model


@pytest.mark.parametrize("parameters", [IMPLICIT, EXPLICIT, LSTM])
def test_what_was_saved_is_loaded(tmp_path: Path, parameters: ModelParameters) -> None:
    model = small_model(parameters).float()
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert not loaded.training
    assert loaded.parameters_section == parameters
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


def test_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="config.json is missing"):
        load_model(tmp_path)
    save_model(small_model(LSTM).float(), tmp_path)

    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_model(tmp_path)
    weights.unlink()
    with pytest.raises(ModelFileError, match="model.safetensors"):
        load_model(tmp_path)
    weights.write_bytes(whole)

    tensors = load_file(weights)
    tensors["surplus"] = tensors.pop("embeddings")
    save_file(tensors, weights)
    with pytest.raises(ModelFileError, match="embeddings: found nothing, needed .*surplus: found"):
        load_model(tmp_path)

    config = json.loads((tmp_path / "config.json").read_text())
    config["model"]["d_modell"] = 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="d_modell"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"family": "mamba3"}, "family"),
        ({"d_state": None}, "d_state is missing"),
        ({"head_dim": 7}, "head_dim is 7; it must divide expand . d_model = 32"),
        ({"num_groups": 3}, "num_groups is 3"),
        ({"hidden_size": 4}, "hidden_size is 4"),
        ({"family": "lstm"}, "implicit is true"),
        (
            {"family": "lstm", "implicit": False, "head_dim": None, "d_state": None}
            | {"hidden_size": 4, "conv_kernel": 3},
            "conv_kernel is 3; a model of family lstm has none",
        ),
    ],
)
def test_impossible_models_are_named(changes: dict, named: str) -> None:
    sizes: dict[str, Any] = {"num_layers": 1, "d_model": 16, "d_state": 4, "head_dim": 8}
    with pytest.raises(ParameterError, match=named):
        ModelParameters(**({"family": "mamba2", "implicit": True} | sizes | changes))
