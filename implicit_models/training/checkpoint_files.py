"""The files of one checkpoint: is it whole, and what does it hold."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from implicit_models.training.failures import described
from implicit_models.training.files import checksum
from implicit_models.training.progress import Progress
from implicit_models.training.state import layout

PROGRESS = "progress.json"  # with the sizes and checksums of the others


def inspect(folder: Path) -> Progress:
    """Read what a checkpoint says, and hold its files against it."""
    content = json.loads((folder / PROGRESS).read_text())
    for name, written in content["files"].items():
        found = (folder / name).stat().st_size
        if found != written["bytes"]:
            raise ValueError(f"{name} has {found} bytes, {written['bytes']} were written")
    return Progress(**content["progress"])


def damage(folder: Path) -> str | None:
    """Return what differs from a checkpoint's checksums; None where all is as it was written."""
    try:
        for name, written in json.loads((folder / PROGRESS).read_text())["files"].items():
            found = checksum(folder / name)
            if found != written["sha256"]:
                return f"{name} has the SHA-256 {found}, {written['sha256']} was written"
    except OSError as error:
        return described(error)
    return None


def read_tensors(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """Read a process's part of a checkpoint into tensors of its own."""
    reader = FileSystemReader(folder)
    here = layout(model, reader.read_metadata().state_dict_metadata)
    state: dict[str, Any] = {name: torch.empty_like(tensor) for name, tensor in here.items()}
    # Each process reads by itself, so that one that fails keeps no other waiting.
    load(state, storage_reader=reader, no_dist=True)
    return state
