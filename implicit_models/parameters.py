"""Strict reading of parameters: a section of a YAML file becomes a frozen dataclass or an error.

A section is described by a frozen, keyword-only dataclass whose fields are made by `setting`:

    @dataclass(frozen=True, kw_only=True)
    class ExampleParameters:
        length: int = setting(minimum=1)
        damping: float = setting(default=1.0, above=0.0, maximum=1.0)

        def __post_init__(self):
            validate(self)

`read_section("runs.first.example", ExampleParameters)` then accepts exactly these keys. This module
is the bottom of the library: it imports nothing else of ours and never torch.
"""

import copy
import dataclasses
import difflib
import functools
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

T = TypeVar("T")

#: The tables of params.yaml: their entries name folders, files and stages of DVC.
TABLES = (
    "datasets",
    "corpora",
    "hub_corpora",
    "tasks",
    "hub_tasks",
    "runs",
    "upcycled",
    "baselines",
    "matched",
    "benchmarks",
    "readings",
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_MISSING_VALUE = "???"


class ParameterError(ValueError):
    """A parameter is unknown, missing, wrongly typed or out of range.

    Raised inside ``__post_init__`` its message starts with the name of the field at fault;
    `read_section` puts the file and the dotted path of the section in front of it.
    """


class MissingKeyError(ParameterError):
    """A section or a key is not in the file."""


def setting(
    *,
    default: Any = dataclasses.MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Iterable[Any] | None = None,
    distinct: bool = False,
) -> Any:
    """Declare a field of a parameters dataclass together with what it may be.

    Bounds and choices hold for every element of a tuple; ``None`` is always let through where the
    type of the field allows it.

    Parameters
    ----------
    default
        Value where the section does not name the key; without it the key is required.
    minimum, maximum
        Inclusive bounds.
    above, below
        Exclusive bounds.
    choices
        The complete list of allowed values.
    distinct
        Whether a tuple has at least one element and none twice.
    """
    bounds = {
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "below": below,
        "choices": None if choices is None else tuple(choices),
        "distinct": distinct or None,
    }
    metadata = {name: bound for name, bound in bounds.items() if bound is not None}
    return dataclasses.field(default=default, metadata=metadata)


def validate(parameters: Any) -> None:
    """Check every field of a parameters dataclass against the range given to `setting`.

    Raises
    ------
    ParameterError
        Naming the field, its value and what is allowed.
    """
    for field in dataclasses.fields(parameters):
        value = getattr(parameters, field.name)
        for element in value if isinstance(value, tuple) else (value,):
            if element is not None and not _in_range(element, field.metadata):
                raise ParameterError(_not_allowed(field.name, value, field))
        if field.metadata.get("distinct") and not 0 < len(value) == len(set(value)):
            raise ParameterError(_not_allowed(field.name, value, field))


def check_at_most(parameters: Any, name: str, limit: str) -> None:
    """Check that one field is at most another.

    Raises
    ------
    ParameterError
        Naming both and their values.
    """
    value, allowed = getattr(parameters, name), getattr(parameters, limit)
    if value > allowed:
        raise ParameterError(
            f"{name} = {value} is not allowed; allowed is at most {limit}, {allowed}"
        )


def read_section(key: str, schema: type[T], path: Path = Path("params.yaml")) -> T:
    """Read one section of a YAML file into a parameters dataclass.

    Sections may be nested dataclasses, optional ones (``Xxx | None``) included; lists become
    tuples. No value is converted from one type to another, except a whole number to a float.

    Parameters
    ----------
    key
        Dotted path of the section, ``"runs.a5_implicit_mamba2.model"``.
    schema
        The dataclass, or the type of a single value (``int``, ``str``, ``tuple[int, ...]``).
    path
        The YAML file.

    Raises
    ------
    ParameterError
        Naming the full dotted key, its value, what is allowed and the closest valid key.
    """
    section = _select(key, path)
    try:
        if dataclasses.is_dataclass(schema):
            return _build(schema, section, key)
        return _convert(schema, section, key, None)
    except ParameterError as error:
        raise ParameterError(f"{path}: {error}") from None


def check_names(content: Any, path: Path = Path("params.yaml")) -> None:
    """Check the names of the entries of all tables of a file, before anything is done with one.

    They become names of folders, which stages and DVC empty, and of stages.

    Parameters
    ----------
    content
        Of the file; what is no mapping has no entries.

    Raises
    ------
    ParameterError
        Naming the table, the name and what is allowed; also where a table is no mapping, which
        DVC may see otherwise.
    """
    for table in TABLES:
        entries = content.get(table) if isinstance(content, Mapping) else None
        if not isinstance(entries, Mapping | None):
            raise ParameterError(
                f"{path}: {table} = {entries!r} is not allowed; allowed is a table of named entries"
            )
        for name in entries or ():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                in_quotes = type(name) is int and name >= 0
                raise ParameterError(
                    f"{path}: {table} has an entry named {name!r}, which is not allowed; allowed "
                    "are letters, digits, _ and -, with a letter or digit first"
                    + (f"; '{name}' is allowed in quotes" if in_quotes else "")
                )


def read_content(path: Path = Path("params.yaml")) -> Any:
    """Read a whole YAML file, with its interpolations resolved and its names checked.

    Raises
    ------
    ParameterError
        Where there is no such file, it is no YAML, or `check_names` refuses a name.
    """
    try:
        content = _content(path, path.read_bytes())
    except FileNotFoundError:
        raise ParameterError(
            f"{path}: no such file; run from the root of the repository, or name another file"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException, OSError) as error:
        raise ParameterError(f"{path}: cannot be read as YAML: {error}") from None
    check_names(content, path)
    return copy.deepcopy(content)


def read_names(key: str, path: Path = Path("params.yaml")) -> tuple[str, ...]:
    """Names of the entries of a table of a YAML file, such as ``"runs"``, in the file's order."""
    section = _select(key, path)
    if not isinstance(section, Mapping):
        raise ParameterError(f"{path}: {key} = {section!r} is not a table of named entries")
    return tuple(section)


def digest(*sections: Any) -> str:
    """SHA-256, in hexadecimal, of dataclasses, mappings, sequences and plain values.

    Equal values give equal digests whatever the order of keys, in every process and on every
    machine; names of classes do not count.
    """
    text = json.dumps([_plain(section) for section in sections], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def source_digest(packages: Iterable[Path]) -> str:
    """Digest the sources of some packages, in Python and C, so that changed code is noticed."""
    digest = hashlib.sha256()
    for package in packages:
        for file in sorted([*package.rglob("*.py"), *package.rglob("*.c")]):
            digest.update(file.relative_to(package.parent).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _select(key: str, path: Path) -> Any:
    node = read_content(path)
    prefix = ""
    for name in key.split("."):
        if not isinstance(node, Mapping) or not node:
            place = prefix.rstrip(".") or "the file"
            raise ParameterError(f"{path}: {key} does not exist: {place} = {node!r} has no keys")
        if name not in node:
            raise MissingKeyError(
                f"{path}: {prefix}{name} does not exist; {_closest(name, node, prefix)}"
            )
        node = node[name]
        prefix += f"{name}."
    return node


@functools.lru_cache(maxsize=4)
def _content(path: Path, content: bytes) -> Any:
    """Parse a file of this content, which a command reads for each of many sections."""
    return OmegaConf.to_container(OmegaConf.load(path), resolve=True)


def _build(schema: Any, section: Any, key: str) -> Any:
    """Make one dataclass, its nested sections first."""
    fields = {field.name: field for field in dataclasses.fields(schema) if field.init}
    if not isinstance(section, Mapping):
        raise ParameterError(
            f"{key} = {section!r} is not a section; allowed is a mapping with {', '.join(fields)}"
        )
    for name in section:
        if name not in fields:
            raise ParameterError(
                f"{key}.{name} = {section[name]!r} is not a known setting; "
                f"{_closest(str(name), fields, f'{key}.')}"
            )
    hints = typing.get_type_hints(schema)
    values = {}
    for name, field in fields.items():
        if section.get(name, _MISSING_VALUE) != _MISSING_VALUE:
            values[name] = _convert(hints[name], section[name], f"{key}.{name}", field)
        elif _is_required(field):
            raise ParameterError(
                f"{key}.{name} is missing; allowed is {_allowed(hints[name], field)}"
            )
    try:
        return schema(**values)
    except ValueError as error:
        raise ParameterError(f"{key}.{error}") from None


def _convert(hint: Any, value: Any, key: str, field: dataclasses.Field | None) -> Any:
    """Check one value against its type; the judge of types is OmegaConf."""
    nested = _nested_schema(hint)
    if nested is not None and value is not None:
        return _build(nested, value, key)
    if nested is None or not _is_optional(hint):
        holder = OmegaConf.structured(dataclasses.make_dataclass("Holder", [("value", hint)]))
        try:
            merged: Any = OmegaConf.to_container(OmegaConf.merge(holder, {"value": value}))
        except OmegaConfBaseException:
            raise ParameterError(_not_allowed(key, value, field, hint)) from None
        typed = merged["value"]
        if typed != value or isinstance(typed, bool) != isinstance(value, bool):
            raise ParameterError(_not_allowed(key, value, field, hint))
        value = _frozen(typed)
    return value


def _frozen(value: Any) -> Any:
    return tuple(_frozen(element) for element in value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    return value


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_optional(hint: Any) -> bool:
    return types.NoneType in typing.get_args(hint)


def _nested_schema(hint: Any) -> Any:
    candidates = typing.get_args(hint) if _is_optional(hint) else (hint,)
    return next((c for c in candidates if dataclasses.is_dataclass(c)), None)


def _in_range(value: Any, bounds: Mapping[str, Any]) -> bool:
    if "choices" in bounds and value not in bounds["choices"]:
        return False
    if not isinstance(value, int | float):
        return True
    return (
        math.isfinite(value)
        and value >= bounds.get("minimum", value)
        and value <= bounds.get("maximum", value)
        and value > bounds.get("above", -math.inf)
        and value < bounds.get("below", math.inf)
    )


def _not_allowed(key: str, value: Any, field: dataclasses.Field | None, hint: Any = None) -> str:
    message = f"{key} = {value!r} is not allowed; allowed is "
    message += _allowed(hint or (field.type if field else None), field)
    choices = field.metadata.get("choices", ()) if field else ()
    if isinstance(value, str) and choices:
        message += f"; the closest is {_closest_name(value, map(str, choices))!r}"
    return message


def _allowed(hint: Any, field: dataclasses.Field | None) -> str:
    """Say in words what a field may be: its type and its range."""
    bounds = field.metadata if field else {}
    words = {"minimum": "at least", "maximum": "at most", "above": "above", "below": "below"}
    nested = _nested_schema(hint)
    if nested is not None:
        keys = ", ".join(f.name for f in dataclasses.fields(nested))
        return f"a section with {keys}"
    parts = [hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)]
    parts += [f"{words[name]} {bound}" for name, bound in bounds.items() if name in words]
    if "choices" in bounds:
        parts.append("one of " + ", ".join(repr(choice) for choice in bounds["choices"]))
    if "distinct" in bounds:
        parts.append("one element or more and each only once")
    return ", ".join(parts)


def _closest_name(name: str, valid: Iterable[str]) -> str:
    return difflib.get_close_matches(name, list(valid), n=1, cutoff=0.0)[0]


def _closest(name: str, valid: Iterable[str], prefix: str) -> str:
    names = [str(candidate) for candidate in valid]
    closest = _closest_name(name, names)
    return f"the closest valid key is {prefix}{closest} (valid: {', '.join(names)})"
