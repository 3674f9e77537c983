"""What the Hugging Face hub has given already, and which variable keeps it from being asked."""

import os
from pathlib import Path

_TRUE = {"1", "ON", "YES", "TRUE"}  # as huggingface_hub and datasets read them


def hub_refused_by() -> str | None:
    """Return the variable that allows no download of a file; None where the hub may be asked."""
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE:
        return None
    set_here = (name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(name))
    return next(set_here, "HF_HUB_OFFLINE")


def datasets_refused_by() -> str | None:
    """Return the variable that allows no download of a data set, as `hub_refused_by`."""
    name = "HF_DATASETS_OFFLINE"
    return hub_refused_by() or (name if os.environ.get(name, "").upper() in _TRUE else None)


def cached_file(repository: str, name: str, revision: str | None = None) -> Path | None:
    """Return a file of a model that was downloaded before; None where there is none."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(repository, name, revision=revision)
    except ValueError:  # no id of the hub
        return None
    return Path(found) if isinstance(found, str) else None
