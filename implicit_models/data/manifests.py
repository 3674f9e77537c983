"""The JSON file that says what a folder of data is: found whole and of this version."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from implicit_models.files import sealed, unsealed


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write a manifest, with a checksum of itself."""
    in_order = json.loads(json.dumps(content, sort_keys=True))
    path.write_text(sealed(in_order, indent=2) + "\n", encoding="utf-8")


def read_manifest(
    path: Path,
    *,
    version: int,
    keys: Iterable[str] = (),
    what: str,
    again: str,
    error: type[ValueError],
) -> dict[str, Any]:
    """Read a manifest.

    Parameters
    ----------
    version
        What ``format_version`` must be.
    keys
        Those that must be there besides.
    what
        What is incomplete without it, ``"corpus"``.
    again
        How to have it written again; the end of every message.
    error
        What to raise.
    """
    try:
        text = path.read_bytes()
        content = json.loads(text)
    except FileNotFoundError:
        raise error(f"{path}: is missing, the {what} is incomplete; {again}") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: is not valid JSON ({problem}); {again}") from None
    found = content.get("format_version") if isinstance(content, dict) else content
    if not isinstance(content, dict) or found != version:
        raise error(
            f"{path}: format_version is {found!r}, this version of the library reads {version}; "
            f"{again}"
        )
    try:
        content = unsealed(text)
    except ValueError as problem:
        raise error(f"{path}: is damaged, {problem}; {again}") from None
    for key in keys:
        if key not in content:
            raise error(f"{path}: is incomplete, {key!r} is missing; {again}")
    return content
