"""Shapes and types of what instrumented functions take and return, each combination checked once.

`--jaxtyping-packages` (pyproject.toml) has jaxtyping check every call, which takes several times as
long as the calls. What it finds depends on nothing but the shapes and types that are described
here, so a combination that a function has had before needs no second look.
"""

import dataclasses
import functools
import inspect
import threading
import types
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jaxtyping
import torch

_check_every_call = jaxtyping.jaxtyped


def check_once() -> None:
    """Make modules that are imported from now on check a combination once."""
    jaxtyping.jaxtyped = jaxtyped  # what jaxtyping's import hook decorates functions with


def jaxtyped(target: Any = None, *, typechecker: Any) -> Any:
    """Check a function, or the initialisation of a dataclass, once for each combination."""
    if target is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if inspect.isclass(target):
        if dataclasses.is_dataclass(target) and "__init__" in vars(target):
            target.__init__ = _checked_once(target.__init__, typechecker)
        return target
    return _checked_once(target, typechecker)


@functools.singledispatch
def describe(value: object) -> Hashable:
    """Return all of a value that an annotation can ask for."""
    return type(value)


@describe.register
def _(value: torch.Tensor) -> Hashable:
    return type(value), value.dtype, value.shape


@describe.register
def _(value: int | str) -> Hashable:
    return type(value), value


@describe.register
def _(value: tuple | list) -> Hashable:
    return type(value), *map(describe, value)


@describe.register
def _(value: Mapping) -> Hashable:
    return type(value), *((describe(key), describe(value[key])) for key in value)


@describe.register
def _(value: set | frozenset) -> Hashable:
    return type(value), frozenset(map(describe, value))


def _checked_once(function: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    taken: set[Hashable] = set()
    returned: set[Hashable] = set()
    known = threading.local()

    def call(*args, **kwargs):
        return vars(known).pop("result") if vars(known) else function(*args, **kwargs)

    # In the function's own module, where jaxtyping looks up the names of its annotations.
    call = types.FunctionType(call.__code__, function.__globals__, closure=call.__closure__)
    check = _check_every_call(functools.update_wrapper(call, function), typechecker=typechecker)

    @functools.wraps(function)
    def checked(*args, **kwargs):
        arguments = describe(args), describe(kwargs) if kwargs else None
        if arguments not in taken:
            result = check(*args, **kwargs)
            taken.add(arguments)
            returned.add((arguments, describe(result)))
            return result
        result = function(*args, **kwargs)
        if (both := (arguments, describe(result))) not in returned:
            known.result = result
            check(*args, **kwargs)
            returned.add(both)
        return result

    return checked
