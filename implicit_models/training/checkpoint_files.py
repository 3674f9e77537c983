"""The files of one checkpoint: is it whole, and what does it hold."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from implicit_models.files import checksum, listed, sealed, size, unsealed, write_whole
from implicit_models.training.carried import PREFIX
from implicit_models.training.checkpoint_metadata import METADATA, read_metadata
from implicit_models.training.failures import described
from implicit_models.training.progress import Progress
from implicit_models.training.state import layout

PROGRESS = "progress.json"  # with the sizes and checksums of the others, and its own


def write_progress(folder: Path, progress: Progress, files: Mapping[str, Any]) -> None:
    """Write what a checkpoint says: how far it is, and the sizes and checksums of its files."""
    content = {"progress": progress.plain(), "files": dict(files)}
    write_whole(folder / PROGRESS, sealed(content))


def inspect(folder: Path) -> Progress:
    """Read what a checkpoint says, and hold its files against it."""
    content = _read_progress(folder)
    for name, written in content["files"].items():
        found = size(folder / name)
        if found != written["bytes"]:
            raise ValueError(f"{name} has {found} bytes, {written['bytes']} were written")
    return Progress(**content["progress"])


def damage(folder: Path) -> str | None:
    """Return what differs from a checkpoint's checksums; None where all is as it was written."""
    try:
        for name, written in _read_progress(folder)["files"].items():
            found = checksum(folder / name)
            if found != written["sha256"]:
                return f"{name} has the SHA-256 {found}, {written['sha256']} was written"
    except (OSError, ValueError) as error:
        return described(error)
    return None


def read_tensors(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """Read a process's part of a checkpoint into tensors of its own, and all that was carried.

    Nothing in it is executed: torch reads tensors by themselves, and what describes them is taken
    from here and not from the pickle that it is.
    """
    reader = _Reader(folder)
    written = reader.read_metadata().state_dict_metadata
    here = layout(model, [name for name in written if not name.startswith(PREFIX)])
    state: dict[str, Any] = {name: torch.empty_like(tensor) for name, tensor in here.items()}
    for name, found in written.items():
        if name.startswith(PREFIX) and isinstance(found, TensorStorageMetadata):
            state[name] = torch.empty(found.size, dtype=found.properties.dtype)
    # Each process reads by itself, so that one that fails keeps no other waiting.
    load(state, storage_reader=reader, no_dist=True)
    return state


class _Reader(FileSystemReader):
    """torch's reader, for which a description of tensors is nothing else."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return read_metadata(Path(self.path) / METADATA, self.load_id)


def _read_progress(folder: Path) -> dict[str, Any]:
    try:
        content = unsealed((folder / PROGRESS).read_bytes())
        return content | {"files": listed(content.get("files"))}
    except ValueError as error:
        raise ValueError(f"{PROGRESS} is damaged: {error}") from error
