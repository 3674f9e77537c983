"""What a folder of transformers says without torch: positions, memory, what it lacks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from implicit_models.hub_access import cached_file

# Of the causal language models of transformers those that have a vector, or a row of a table, for
# each position, and how many where the file does not say. Others compute theirs for any length.
_LIMITED = {
    "biogpt": 1024,
    "codegen": 2048,
    "ctrl": 256,
    "gpt2": 1024,
    "gpt_bigcode": 1024,
    "gpt_neo": 2048,
    "gptj": 2048,
    "openai-gpt": 512,
    "opt": 2048,
}
# Those with states, or whose sliding window has a default that the file may leave out.
_WITH_STATE = ("mamba2", "mistral")
_KEYS = ("n_positions", "max_position_embeddings")


def num_positions(source: str) -> tuple[int, str] | None:
    """Return the most tokens that a source's models read, and the file and key that say so.

    None where there is no such limit, or the source is not on this machine.
    """
    file = _configuration_file(source)
    content = _content(file)
    if content is None or content.get("model_type") not in _LIMITED:
        return None
    key = next((each for each in _KEYS if each in content), _KEYS[0])
    found = content.get(key, _LIMITED[content["model_type"]])
    return (found, f"{file}: {key}") if isinstance(found, int) else None


def may_have_state(source: str) -> bool:
    """Return whether the cache of a source's models may have a fixed size, as far as it says."""
    content = _content(_configuration_file(source))
    if content is None or content.get("sliding_window") is not None:
        return True
    is_null = "sliding_window" in content
    return content.get("model_type") in _WITH_STATE and not is_null


def missing(source: str, needs_weights: bool) -> Iterator[str]:
    """Yield what a source's folder lacks, after the section's key; nothing of a hub's model."""
    folder = Path(source)
    if not folder.is_dir():
        return
    key, file = f"source = {source!r}", folder / "config.json"
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        yield f"{key} holds no config.json; put a configuration of transformers there"
        return
    except (OSError, ValueError) as error:
        yield f"{key}: its config.json cannot be read: {error}"
        return
    if not isinstance(content, dict) or not content.get("model_type"):
        yield f"{key}: its config.json has no model_type, such as gpt2; a configuration has one"
    if needs_weights and not any(folder.glob("*.safetensors")):
        yield f"{key} holds no .safetensors; put weights there, or leave out pretrained"


def _content(file: Path | None) -> dict[str, Any] | None:
    """Return what a configuration's file says; None where it cannot be read."""
    try:
        content = json.loads(file.read_bytes()) if file is not None else None
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _configuration_file(source: str) -> Path | None:
    """Return the configuration in a folder, or what was downloaded of the hub's; None for none."""
    file = Path(source, "config.json")
    if Path(source).is_dir():
        return file if file.is_file() else None
    return cached_file(source, "config.json")
