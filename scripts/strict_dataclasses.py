"""For the API page: Hugging Face's `@strict` classes are dataclasses, and have their signatures.

mkdocs.yml names this extension of griffe, which reads the source and imports nothing.
"""

from typing import Any

from griffe import Class, Decorator, ExprName, Extension, Module

_STRICT = "huggingface_hub.dataclasses.strict"


class StrictDataclasses(Extension):
    """Tells griffe's own extension of dataclasses, which runs later, what `@strict` makes."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Mark the classes of a package that has been loaded."""
        _mark(pkg)


def _mark(within: Module | Class) -> None:
    for member in within.members.values():
        if isinstance(member, Module | Class):
            if isinstance(member, Class) and any(
                decorator.callable_path == _STRICT for decorator in member.decorators
            ):
                dataclass = ExprName("dataclasses.dataclass")
                member.decorators.append(Decorator(dataclass, lineno=None, endlineno=None))
            _mark(member)
