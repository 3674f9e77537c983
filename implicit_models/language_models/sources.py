"""Checkpoints from elsewhere: any causal language model that transformers can load."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from implicit_models.checksums import compare_folder
from implicit_models.language_models.source_names import SourceError, is_folder, is_hub_id

# Nothing of a model is run: weights of safetensors alone, and no code of its own, even where
# somebody at a terminal would be asked.
UNTRUSTED: dict[str, Any] = {"use_safetensors": True, "trust_remote_code": False}
ADAPTER = "adapter_config.json"
MERGE = "merge them with PEFT's merge_and_unload, and name the folder that you save"
UNREADABLE = (SafetensorError, OSError, ValueError, KeyError, RuntimeError, ImportError)


def load_source(source: str) -> PreTrainedModel:
    """Load a model, in float32 and evaluation mode, from a folder or by its hub id.

    Raises
    ------
    SourceError
        Where it cannot be loaded, or not all of its weights are there.
    """
    with naming_the_source(source), quietly():
        compare_folder(Path(source))
        model, info = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
            source, dtype=torch.float32, output_loading_info=True, **UNTRUSTED
        )
    missing = sorted(map(str, info["missing_keys"]))
    if missing:
        raise SourceError(f"the weights in {source} lack {', '.join(missing)}")
    return model


def digest_source(source: str) -> str | None:
    """Digest the configuration and the weights in a folder; None where it is no folder."""
    folder = Path(source)
    if not folder.is_dir():
        return None
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.json"), *folder.glob("*.safetensors")]):
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


@contextmanager
def naming_the_source(source: str) -> Iterator[None]:
    """Turn what goes wrong while a model is read into an error that names it."""
    if not is_folder(source) and not is_hub_id(source):
        raise SourceError(f"no model can be read from {source}: there is no such folder")
    if Path(source, ADAPTER).exists():
        raise SourceError(
            f"no model can be read from {source}: its {ADAPTER} names another one; {MERGE}"
        )
    try:
        yield
    except StrictDataclassError as error:  # it tells the field that is wrong in its cause
        raise SourceError(
            f"no model can be read from {source}: {error.__cause__ or error}"
        ) from error
    except UNREADABLE as error:
        first = str(error).strip().split("\n")[0]
        raise SourceError(f"no model can be read from {source}: {first}") from error


@contextmanager
def quietly() -> Iterator[None]:
    """Show no progress bar for files that take a moment."""
    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()
