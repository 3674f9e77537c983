"""Shapes and types of what instrumented functions take and return, each combination checked once.

`--jaxtyping-packages` (pyproject.toml) has jaxtyping check every call, which takes several times as
long as the calls. What it finds depends on nothing but the shapes and types that are described
here, so a combination that a function has had before needs no second look. Where an annotation is
of classes alone, that is the type; elsewhere it is all of the value. A function whose annotations
are all of classes, which pyright has checked, is looked at in its first calls and then left alone:
telling the types of its arguments takes longer than most of them do. One that asks for shapes is
looked at in its first calls of each test: what a loop calls for the thousandth time has the shapes
that it had before.
"""

import dataclasses
import functools
import importlib.machinery
import inspect
import threading
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any
from unittest import mock

import jaxtyping
import torch
from jaxtyping import _import_hook

FIRST_CALLS = 500  # of a function that asks for no shapes
FIRST_CALLS_OF_A_TEST = 100  # of one that does

_check_every_call = jaxtyping.jaxtyped


def check_once() -> None:
    """Make modules that are imported from now on check a combination once."""
    jaxtyping.jaxtyped = jaxtyped  # what jaxtyping's import hook decorates functions with
    _import_hook._JaxtypingLoader = _Loader


class _Loader(_import_hook._JaxtypingLoader):
    """Has bytecode of its own for the module, and not for all that the module imports.

    jaxtyping's keeps its name for bytecode until the module has run, so that whatever it is the
    first to import, transformers and sympy among it, is compiled anew: 1,900 modules, 10 s.
    """

    def get_code(self, fullname: str) -> Any:
        name = functools.partial(
            _import_hook._optimized_cache_from_source, self._typechecker.get_hash()
        )
        with mock.patch("importlib._bootstrap_external.cache_from_source", name):
            return super().get_code(fullname)

    def exec_module(self, module: types.ModuleType) -> None:
        importlib.machinery.SourceFileLoader.exec_module(self, module)


def begin_test() -> None:
    """Look at functions that ask for shapes anew."""
    _state.test += 1


class _State:
    test = 0


_state = _State()


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
    return _hows[type(value)](value)


def _sequence(value: Iterable[object]) -> Hashable:
    return type(value), *[describe(each) for each in value]


_NO_SIZE = 2**32  # no axis is as long: such a number is an address, and every call has another
# What is looked at of values of these types; of others, it is their type.
_HOWS: dict[Any, Callable[[Any], Hashable]] = {
    torch.Tensor: lambda value: (type(value), value.dtype, value.shape),
    int: lambda value: (type(value), value) if value < _NO_SIZE else type(value),
    str: lambda value: (type(value), value),
    (tuple, list): _sequence,
    Mapping: lambda value: (
        type(value),
        *[(describe(key), describe(each)) for key, each in value.items()],
    ),
    (set, frozenset): lambda value: (type(value), frozenset(map(describe, value))),
}


class _Hows(dict[type, Callable[[Any], Hashable]]):
    """How values are described, by the types that were seen."""

    def __missing__(self, kind: type) -> Callable[[Any], Hashable]:
        found = (how for base, how in _HOWS.items() if issubclass(kind, base))
        return self.setdefault(kind, next(found, type))


_hows = _Hows()


def asks_for_the_type(annotation: Any) -> bool:
    """Return whether an annotation is of classes, and of no shape, no value and no content."""
    if isinstance(annotation, types.UnionType):
        return all(map(asks_for_the_type, annotation.__args__))
    if annotation is None:
        return True
    is_class = isinstance(annotation, type) and typing.get_origin(annotation) is None
    return is_class and not issubclass(annotation, jaxtyping.AbstractArray)


def how_to_describe(annotation: Any) -> Callable[[Any], Hashable]:
    """Return what tells of a value all that an annotation asks for, and little more."""
    if asks_for_the_type(annotation):
        return type
    container, of = typing.get_origin(annotation), typing.get_args(annotation)
    if container in (list, tuple) and all(each is ... or asks_for_the_type(each) for each in of):
        return _types
    return describe


def _types(value: object) -> Hashable:
    kind = type(value)
    return (kind, *map(type, value)) if isinstance(value, list | tuple) else kind


class _Function:
    """How calls of a function are described, and what came of each combination."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.results: dict[Hashable, set[Hashable]] = {}  # what each has given back
        code, annotations = function.__code__, function.__annotations__
        # A shape may name the value of another argument: "{size}". And what a decorator has
        # returned has the annotations of another function.
        all_of_it = hasattr(function, "__wrapped__") or any(
            "{" in str(each) for each in annotations.values()
        )

        def how(name: str) -> Callable[[Any], Hashable]:
            return describe if all_of_it else how_to_describe(annotations.get(name))

        number = code.co_argcount + code.co_kwonlyargcount
        takes_more = bool(code.co_flags & inspect.CO_VARARGS)
        self.hows = {name: how(name) for name in code.co_varnames[:number]}
        self.positions = tuple(self.hows[name] for name in code.co_varnames[: code.co_argcount])
        self.more = how(code.co_varnames[number]) if takes_more else None
        self.by_type = {*self.positions, self.more} <= {type, None}
        self.describe_result = how("return")
        names = annotations.keys()
        self.asks_for_shapes = all_of_it or any(how(name) is describe for name in names)
        self.num_calls = 0
        self.test = _state.test

    def is_left_alone(self) -> bool:
        """Count a call, and return whether there have been enough."""
        if self.asks_for_shapes:
            if self.test != _state.test:
                self.test, self.num_calls = _state.test, 0
            most = FIRST_CALLS_OF_A_TEST
        else:
            most = FIRST_CALLS
        self.num_calls += 1
        return self.num_calls > most

    def describe_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        if self.by_type:
            found = tuple(map(type, args))
        else:
            found = tuple([how(value) for how, value in zip(self.positions, args, strict=False)])
            if self.more is not None and len(args) > len(found):
                found += tuple(map(self.more, args[len(found) :]))
        if not kwargs:
            return found
        hows = self.hows
        named = [(name, hows.get(name, describe)(value)) for name, value in kwargs.items()]
        return found, tuple(named)


# By their code and name: functions may be defined anew in each call of another, and decorators
# return functions of one code.
_functions: dict[Hashable, _Function] = {}


def _checked_once(function: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    key = function.__code__, function.__module__, function.__qualname__
    if key not in _functions:
        _functions[key] = _Function(function)
    described = _functions[key]
    results = described.results
    describe_arguments, describe_result = described.describe_arguments, described.describe_result
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
        if described.is_left_alone():
            return function(*args, **kwargs)
        arguments = describe_arguments(args, kwargs)
        returned = results.get(arguments)
        if returned is None:
            result = check()(*args, **kwargs)
            results[arguments] = {describe_result(result)}
            return result
        result = function(*args, **kwargs)
        if (found := describe_result(result)) not in returned:
            known.result = result
            check()(*args, **kwargs)
            returned.add(found)
        return result

    return checked
