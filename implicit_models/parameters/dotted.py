"""The dotted names of what nested mappings hold."""

from collections.abc import Iterator, Mapping
from typing import Any


def dotted(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of nested mappings under its dotted name.

    An empty mapping in another is a leaf, too; what is no mapping at all is one without a name.

    >>> list(dotted({"model": {"family": "mamba2", "lengths": {}}}))
    [('model.family', 'mamba2'), ('model.lengths', {})]

    Parameters
    ----------
    prefix
        What all names begin with, such as ``"test."``.
    """
    if not isinstance(content, Mapping):
        yield prefix.removesuffix("."), content
        return
    for name, value in content.items():
        if isinstance(value, Mapping) and not value:
            yield f"{prefix}{name}", value
        else:
            yield from dotted(value, f"{prefix}{name}.")
