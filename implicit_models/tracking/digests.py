"""DVC's names of content: the MD5 under which it knows a file or a folder."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from implicit_models.parameters.structure import load_plain

_LOCK = Path("dvc.lock")
_MANIFESTS = ("manifest.json", "metadata.json")


def content_digest(path: Path) -> str:
    """Compute what DVC would record of a file or folder as it is now.

    Returns
    -------
    str
        32 hexadecimal digits, and ``".dir"`` for a folder.
    """
    if path.is_file():
        return _md5(path)
    files = {each.relative_to(path).as_posix(): each for each in path.rglob("*") if each.is_file()}
    listing = [{"md5": _md5(files[name]), "relpath": name} for name in sorted(files)]
    text = json.dumps(listing, sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + ".dir"


def is_recorded(dvc_stage: str | None, inputs: Mapping[str, str]) -> bool:
    """Return whether DVC has recorded that a stage has run with files and folders as they are.

    Parameters
    ----------
    inputs
        The `content_digest` of each, by its path.
    """
    stage = _stages().get(dvc_stage or "") or {}
    recorded = {each.get("path"): each.get("md5") for each in stage.get("deps") or ()}
    return bool(inputs) and inputs.items() <= recorded.items()


def data_digest(path: Path) -> str | None:
    """Look up what DVC has recorded of a folder of data; nothing large is read.

    Outside of DVC, or where the folder has another size than DVC has recorded, it is the MD5 of
    the manifest in the folder, which holds the digests of everything else; None without one.
    """
    recorded = _recorded(path)
    if recorded is not None and recorded.get("size") == _size(path):
        return recorded["md5"]
    manifests = [path / name for name in _MANIFESTS if (path / name).is_file()]
    return _md5(manifests[0]) if manifests else None


def _recorded(path: Path) -> dict[str, Any] | None:
    """Find the output of a stage in dvc.lock."""
    outputs = (output for stage in _stages().values() for output in stage.get("outs") or ())
    found = (each for each in outputs if each.get("path") == path.as_posix() and "md5" in each)
    return next(found, None)


def _stages() -> dict[str, Any]:
    """Read what DVC has recorded of stages; nothing where that is missing or damaged."""
    try:
        stages = load_plain(_LOCK.read_bytes())["stages"]
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError):
        return {}
    if not isinstance(stages, dict):
        return {}
    return {name: stage for name, stage in stages.items() if _is_stage(stage)}


def _is_stage(stage: Any) -> bool:
    return isinstance(stage, dict) and all(
        isinstance(each, dict)
        for part in ("deps", "outs")
        for each in (stage.get(part) or ())
        if isinstance(stage.get(part), list | None)
    )


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files if each.is_file())


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, _new_md5).hexdigest()


def _new_md5() -> Any:
    return hashlib.md5(usedforsecurity=False)
