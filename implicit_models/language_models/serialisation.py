"""A model's folder, as transformers writes it: config.json, model.safetensors and a card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from implicit_models.checksums import compare_folder
from implicit_models.language_models.language_model import LanguageModel
from implicit_models.language_models.model_card import write_card
from implicit_models.language_models.pretrained import (
    ModelFileError,
    StrictPreTrainedModel,
    list_wrong_weights,
)
from implicit_models.language_models.sources import ADAPTER, MERGE, UNREADABLE, UNTRUSTED, quietly

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save_model(
    model: LanguageModel, directory: Path, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write a model and a card, which says where it comes from; of ours the configuration too.

    Raises
    ------
    OSError
        Where something cannot be written, such as on a full disk.
    """
    is_ours = isinstance(model, StrictPreTrainedModel)
    if is_ours:
        model.config.provenance = dict(provenance) if provenance else None
    try:
        with quietly():
            model.save_pretrained(directory)
    except SafetensorError as error:  # what the disk refuses
        raise OSError(f"{directory / WEIGHTS} could not be written: {error}") from error
    if not is_ours:
        write_card(model, directory, provenance or {})


def load_model(directory: Path, device: torch.device | None = None) -> LanguageModel:
    """Read a model, in evaluation mode, onto a device (the CPU where None).

    Raises
    ------
    ModelFileError
        Naming the file that is missing or broken, or the weights that do not fit.
    DamagedFileError
        Naming the file that is not what its folder's list of checksums says; a folder from
        elsewhere may have none.
    """
    compare_folder(directory)
    for name in (CONFIG, WEIGHTS):
        if not (directory / name).exists():
            sharded = directory / f"{WEIGHTS}.index.json"
            if name == CONFIG or not sharded.exists():
                raise ModelFileError(
                    f"{directory / name} is missing; a model is {CONFIG} and {WEIGHTS}"
                )
    if (directory / ADAPTER).exists():
        raise ModelFileError(f"{directory / ADAPTER} names another model; {MERGE}")
    try:
        with quietly():
            model, info = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
                directory,
                output_loading_info=True,
                local_files_only=True,
                **UNTRUSTED,
                ignore_mismatched_sizes=True,  # or the error does not tell the names
            )
    except ModelFileError:
        raise
    except StrictDataclassError as error:  # it tells the field that is wrong in its cause
        raise ModelFileError(f"{directory / CONFIG}: {error.__cause__ or error}") from None
    except (*UNREADABLE, TypeError) as error:
        raise ModelFileError(f"{directory} cannot be read as a model: {error}") from None
    if wrong := list_wrong_weights(info):
        raise ModelFileError(f"the weights in {directory} do not fit: {wrong}")
    return model.to(device).eval()
