"""The JSON file that says what a folder of data is: found whole and of this version."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


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
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path}: is missing, the {what} is incomplete; {again}") from None
    except ValueError as problem:
        raise error(f"{path}: is not valid JSON ({problem}); {again}") from None
    found = content.get("format_version") if isinstance(content, dict) else content
    if not isinstance(content, dict) or found != version:
        raise error(
            f"{path}: format_version is {found!r}, this version of the library reads {version}; "
            f"{again}"
        )
    for key in keys:
        if key not in content:
            raise error(f"{path}: is incomplete, {key!r} is missing; {again}")
    return content
