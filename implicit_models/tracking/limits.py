"""What MLflow accepts, by its own limits (mlflow.utils.validation)."""

import re
from collections.abc import Mapping

from implicit_models import parameters as parameters_module

MAX_ITEMS = {"metrics": 1000, "params": 100}  # at once
_MAX_KEY = 250
_MAX_VALUE = 6000
_REJECTIONS = ("INVALID_PARAMETER_VALUE", "FEATURE_DISABLED", "ENDPOINT_NOT_FOUND")


def is_rejection(error: Exception) -> bool:
    """Return whether the store answered that it will never take this."""
    return getattr(error, "error_code", None) in _REJECTIONS


def accepted(values: Mapping[str, str]) -> dict[str, str]:
    """Return tags or parameters with names and values that MLflow accepts."""
    return {accepted_key(name): _shortened(value, _MAX_VALUE) for name, value in values.items()}


def accepted_key(name: str) -> str:
    """Return a name without what MLflow does not accept in one."""
    return _shortened(re.sub(r"[^\w.\-/ :]", "_", name), _MAX_KEY)


def _shortened(text: str, length: int) -> str:
    """Cut a text that is too long, and let the rest of it count through a digest."""
    if len(text) <= length:
        return text
    mark = f"..{parameters_module.digest(text)[:16]}"
    return text[: length - len(mark)] + mark
