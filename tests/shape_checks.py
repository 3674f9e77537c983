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
from collections.abc import Callable, Hashable, Iterable, Mapping
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


def describe(value: object) -> Hashable:
    """Return all of a value that an annotation can ask for."""
    return _each((value,))[0]


def _each(values: Iterable[Any]) -> tuple[Hashable, ...]:
    """Describe values; that of tensors, most of them, and of plain objects takes no call."""
    return tuple(
        [
            (kind, value.dtype, value.shape)
            if (how := _hows[kind := type(value)]) is _tensor
            else kind
            if how is None
            else how(value)
            for value in values
        ]
    )


def _tensor(value: torch.Tensor) -> Hashable:
    return type(value), value.dtype, value.shape


_NO_SIZE = 2**32  # no axis is as long: such a number is an address, and every call has another
# What is looked at of values of these types; of others, it is their type.
_HOWS: dict[Any, Callable[[Any], Hashable]] = {
    torch.Tensor: _tensor,
    int: lambda value: (type(value), value) if value < _NO_SIZE else type(value),
    str: lambda value: (type(value), value),
    (tuple, list): lambda value: (type(value), *_each(value)),
    Mapping: lambda value: (
        type(value),
        *[(describe(key), describe(each)) for key, each in value.items()],
    ),
    (set, frozenset): lambda value: (type(value), frozenset(map(describe, value))),
}


class _Hows(dict[type, Callable[[Any], Hashable] | None]):
    """By the types that were seen."""

    def __missing__(self, kind: type) -> Callable[[Any], Hashable] | None:
        hows = (how for base, how in _HOWS.items() if issubclass(kind, base))
        self[kind] = next(hows, None)
        return self[kind]


_hows = _Hows()


# What the functions of one code, which may be defined anew in each call of another, were given, and
# what each combination has given back.
_seen: dict[types.CodeType, dict[Hashable, set[Hashable]]] = {}


def _checked_once(function: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    results = _seen.setdefault(function.__code__, {})
    known = threading.local()

    @functools.cache  # it takes longer than most calls, and most definitions need none
    def check() -> Callable[..., Any]:
        def call(*args, **kwargs):
            return vars(known).pop("result") if vars(known) else function(*args, **kwargs)

        # In the function's own module, where jaxtyping looks up the names of its annotations.
        call = types.FunctionType(call.__code__, function.__globals__, closure=call.__closure__)
        return _check_every_call(functools.update_wrapper(call, function), typechecker=typechecker)

    @functools.wraps(function)
    def checked(*args, **kwargs):
        arguments = _each(args), (*kwargs, *_each(kwargs.values())) if kwargs else None
        returned = results.get(arguments)
        if returned is None:
            result = check()(*args, **kwargs)
            results[arguments] = {_each((result,))}
            return result
        result = function(*args, **kwargs)
        if (described := _each((result,))) not in returned:
            known.result = result
            check()(*args, **kwargs)
            returned.add(described)
        return result

    return checked
