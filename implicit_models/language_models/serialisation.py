"""A model's files: config.json and model.safetensors."""

import dataclasses
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from implicit_models.language_models.building import LanguageModel, build
from implicit_models.language_models.parameters import ModelParameters

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class ModelFileError(ValueError):
    """A model's folder does not hold what it should."""


def save_model(model: LanguageModel, directory: Path) -> None:
    """Write a model's parameters and weights."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "model": dataclasses.asdict(model.parameters_section),
        "vocabulary_size": model.vocabulary_size,
    }
    (directory / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, directory / WEIGHTS)


def load_model(directory: Path, device: torch.device | None = None) -> LanguageModel:
    """Read a model, in evaluation mode, onto a device (the CPU where None).

    Raises
    ------
    ModelFileError
        Naming the file that is missing or broken, or the weights that do not fit.
    """
    try:
        config = json.loads((directory / CONFIG).read_text())
        parameters = ModelParameters(**config["model"])
        model = build(parameters, config["vocabulary_size"], seed=0)
        weights = load_file(directory / WEIGHTS)
    except FileNotFoundError as error:
        raise ModelFileError(
            f"{error.filename or directory / WEIGHTS} is missing; a model is {CONFIG} and {WEIGHTS}"
        ) from None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{directory} cannot be read as a model: {error}") from None
    expected = model.state_dict()
    wrong = [
        f"{name}: found {_shape(weights.get(name))}, needed {_shape(expected.get(name))}"
        for name in sorted(weights.keys() | expected.keys())
        if _shape(weights.get(name)) != _shape(expected.get(name))
    ]
    if wrong:
        raise ModelFileError(f"the weights in {directory} do not fit: {'; '.join(wrong)}")
    model.load_state_dict(weights)
    return model.to(device).eval()


def _shape(tensor: object) -> str:
    return "nothing" if tensor is None else str(tuple(getattr(tensor, "shape", ())))
