"""What pydantic refuses, in our words: key, value, what is allowed, and the closest."""

import typing
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from implicit_models.parameters.errors import ParameterError, closest_name

_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def refusal(
    name: str, value: Any, detail: Mapping[str, Any], hint: Any, metadata: Iterable[Any] = ()
) -> ParameterError:
    """Return what is wrong with a value.

    Parameters
    ----------
    name, value
        Of the field or section.
    detail
        One of the errors of pydantic's `ValidationError`, of this value or a part of it.
    hint, metadata
        The type of the value, and what pydantic holds apart from it.
    """
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, ParameterError):
        return cause.inside(".".join([name, *map(str, detail["loc"])]))
    allowed = in_words(hint, metadata)
    if detail["type"] == "model_type":
        return ParameterError(f"{name} = {value!r} is not a section; allowed is {allowed}")
    choices = [str(choice) for choice in _choices(hint)]
    closest = ""
    if choices and isinstance(detail["input"], str):
        closest = f"; the closest is {closest_name(detail['input'], choices)!r}"
    return ParameterError(f"{name} = {value!r} is not allowed; allowed is {allowed}{closest}")


def in_words(hint: Any, metadata: Iterable[Any] = ()) -> str:
    """Return what a value may be: its type, as YAML has it, and its range."""
    return ", ".join([_type(hint), *_ranges(hint), *_bounds(metadata)])


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if _is_section(hint):
        return "a section with " + ", ".join(hint.model_fields)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " | ".join(dict.fromkeys(_type(type(choice)) for choice in arguments))
    if origin in (Union, UnionType):
        sections = [each for each in arguments if _is_section(each)]
        return " | ".join(map(_type, sections or arguments))
    if origin is tuple:
        return f"list[{', '.join(_type(each) for each in arguments if each is not ...)}]"
    if dict in (origin, hint):
        return "a section"
    if hint is type(None):
        return "null"
    return hint.__name__ if isinstance(hint, type) and not arguments else str(hint)


def _ranges(hint: Any) -> Iterator[str]:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated:
        yield from _ranges(arguments[0])
        yield from _bounds(arguments[1:])
    elif typing.get_origin(hint) is Literal:
        yield "one of " + ", ".join("null" if each is None else repr(each) for each in arguments)
    else:
        for each in arguments:
            yield from _ranges(each)


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from _bounds(each.metadata)
        elif isinstance(each, str):
            yield each
        elif hasattr(each, "min_length"):
            yield f"at least {each.min_length} long"
        else:
            yield from (f"{_BOUNDS[b]} {getattr(each, b)}" for b in _BOUNDS if hasattr(each, b))


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _choices(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) is Literal:
        yield from typing.get_args(hint)
    else:
        for each in typing.get_args(hint):
            yield from _choices(each)
