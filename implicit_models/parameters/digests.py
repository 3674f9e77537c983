"""Digests of parameters, by which a change is noticed."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def digest(*sections: Any) -> str:
    """Return the SHA-256, in hexadecimal, of parameters, mappings, sequences and plain values.

    Equal values give equal digests whatever the order of keys, in every process and on every
    machine; names of classes do not count.
    """
    text = json.dumps([_plain(section) for section in sections], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def without_tests(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a model without what it says of its own tests: the training's keys."""
    return {name: each for name, each in entry.items() if name not in ("evaluation", "sweep")}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(name): _plain(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    return value
