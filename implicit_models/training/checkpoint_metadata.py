"""torch's description of where a checkpoint's tensors lie, read so that nothing in it is executed.

It is a pickle, which can call what it names and set attributes of it. So nothing that it names is
handed to it: everything is a stand-in that keeps its arguments and its state. What these say is
then checked and made into torch's own.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

METADATA = ".metadata"
_TORCHS = "torch.distributed.checkpoint.metadata"
_DTYPES = {name: each for name, each in vars(torch).items() if isinstance(each, torch.dtype)}
# What describes tensors. Bytes are not among it: torch loads those as a pickle of anything.
_DESCRIPTIONS = {
    _TORCHS: {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *_DTYPES},
    "builtins": {"getattr"},  # of an enumeration, as Python 3.11.2 pickles it (Debian 12)
    "pathlib": {"PosixPath"},
    "pathlib._local": {"PosixPath"},  # Python 3.13's
}


def read_metadata(path: Path, load_id: str) -> Metadata:
    """Read a description.

    Parameters
    ----------
    path
        The file, which torch has written beside those that it describes.
    load_id
        Of the reading, for torch.

    Raises
    ------
    ValueError
        Where it is anything else than a description of tensors in files beside it.
    """
    try:
        with path.open("rb") as file:
            found = _Unpickler(file).load()
        return _metadata(found, load_id)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{METADATA} is no description: {type(error).__name__}: {error}") from None


class _Named:
    """What a pickle names, called with arguments, and then given a state."""

    name = ""
    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __new__(cls, *arguments: Any) -> "_Named":
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        if global_name not in _DESCRIPTIONS.get(module_name, ()):
            raise ValueError(f"{METADATA} asks for {module_name}.{global_name}; it is not executed")
        # Of its own for each place: what a pickle sets on one reaches nothing else.
        return type(global_name, (_Named,), {"name": f"{module_name}.{global_name}"})


def _metadata(found: Any, load_id: str) -> Metadata:
    state = _state(found, "Metadata")
    tensors: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
        _is(name, str): _tensor(tensor)
        for name, tensor in _is(state["state_dict_metadata"], dict).items()
    }
    places = {
        _index(index): _place(where) for index, where in _is(state["storage_data"], dict).items()
    }
    return Metadata(
        tensors,
        storage_data=places,
        storage_meta=StorageMeta(load_id=load_id),
        version=_is(state.get("version"), str, type(None)),
    )


def _tensor(found: Any) -> TensorStorageMetadata:
    state = _state(found, "TensorStorageMetadata")
    properties = state["properties"]
    if not _is_a(properties, f"{_TORCHS}.TensorProperties"):
        raise ValueError(f"{METADATA} describes the properties of a tensor with {properties!r}")
    dtype, *_ = _is(properties.state, tuple)  # layout and the rest are the same of all
    module, _, name = getattr(dtype, "name", "").partition(".")
    if not isinstance(dtype, type) or module != "torch" or name not in _DTYPES:
        raise ValueError(f"{METADATA} describes a tensor of the type {dtype!r}")
    chunks = [
        ChunkStorageMetadata(_size(chunk["offsets"]), _size(chunk["sizes"]))
        for chunk in (_state(each, "ChunkStorageMetadata") for each in _is(state["chunks"], list))
    ]
    return TensorStorageMetadata(TensorProperties(_DTYPES[name]), _size(state["size"]), chunks)


def _index(found: Any) -> MetadataIndex:
    state = _state(found, "MetadataIndex")
    offset = state.get("offset")
    return MetadataIndex(
        _is(state["fqn"], str),
        None if offset is None else _size(offset),
        _is(state.get("index"), int, type(None)),
    )


def _place(found: Any) -> _StorageInfo:
    if not _is_a(found, "torch.distributed.checkpoint.filesystem._StorageInfo"):
        raise ValueError(f"{METADATA} describes a place with {found!r}")
    state = _is(found.state, dict)
    name = _is(state["relative_path"], str)
    if Path(name).name != name:
        raise ValueError(f"{METADATA} names {name!r}, no file beside it")
    return _StorageInfo(name, _is(state["offset"], int), _is(state["length"], int))


def _size(found: Any) -> torch.Size:
    if not _is_a(found, "torch.Size"):
        raise ValueError(f"{METADATA} describes a size with {found!r}")
    (values,) = found.arguments
    return torch.Size([_is(value, int) for value in _is(values, tuple, list)])


def _state(found: Any, name: str) -> Mapping[str, Any]:
    """Return the attributes of one of torch's classes."""
    if not _is_a(found, f"{_TORCHS}.{name}"):
        raise ValueError(f"{METADATA} holds a {_kind(found)} in the place of a {name}")
    return _is(found.state, dict)


def _is_a(found: Any, name: str) -> bool:
    return isinstance(found, _Named) and found.name == name


def _is(found: Any, *kinds: type) -> Any:
    if type(found) not in kinds:
        allowed = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{METADATA} holds a {_kind(found)} in the place of a {allowed}")
    return found


def _kind(found: Any) -> str:
    return found.name if isinstance(found, _Named) else type(found).__name__
