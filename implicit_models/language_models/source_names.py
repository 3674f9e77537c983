"""What can name a model's source, told without torch."""

import re
from pathlib import Path


class SourceError(ValueError):
    """A model's source cannot be read, or does not fit."""


def is_folder(source: str) -> bool:
    """Return whether a model's source is a folder that is there."""
    return source != "" and Path(source).is_dir()


def is_hub_id(source: str) -> bool:
    """Return whether a model's source can be a hub id, NAME or OWNER/NAME, and no folder.

    Where OWNER is a folder here, OWNER/NAME is taken for one in it, be it there or not.
    """
    owner, slash, _ = source.partition("/")
    if is_folder(source) or (slash and Path(owner).is_dir()):
        return False
    return re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*", source) is not None
