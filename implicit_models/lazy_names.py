"""Names of a package that are imported when they are first asked for (PEP 562)."""

import ast
import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that imports names for type checkers.

    The table of names is what the package's file imports under ``if TYPE_CHECKING:``, which editors
    and pyright read as well; ``import X as X`` tells them that X is for others, too (PEP 484). It
    is read when a name is first asked for.
    """

    def get(name: str) -> Any:
        module = sys.modules[package]
        places = {} if name.startswith("__") else places_of_names(module.__file__)
        if name not in places:
            text = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=module)
        found = getattr(importlib.import_module(places[name]), name)
        setattr(module, name, found)
        return found

    def list_names() -> list[str]:
        module = sys.modules[package]
        return sorted({*vars(module), *places_of_names(module.__file__)})

    return get, list_names


@functools.cache
def places_of_names(file: str) -> dict[str, str]:
    """Return the module of each name that a file imports under ``if TYPE_CHECKING:``."""
    blocks = [
        node
        for node in ast.parse(Path(file).read_bytes()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
