"""Where a model's weights come from, as far as params.yaml tells."""

import re
from collections.abc import Mapping
from typing import Any


def trained_entry(folder: str) -> str | None:
    """Name the entry of params.yaml whose final model is in a folder; None for any other folder."""
    found = re.fullmatch(r"(?:\./)?models/([^/]+)/final/?", folder)
    return found[1] if found else None


def weights_source(entry: Mapping[str, Any]) -> str | None:
    """Give the folder or hub id whose weights an entry's training began from; None for none.

    A model of family ``huggingface`` that is not pretrained takes but its source's configuration.
    """
    model = entry.get("model") or {}
    if model.get("family") == "huggingface" and not model.get("pretrained", False):
        return None
    return model.get("source")
