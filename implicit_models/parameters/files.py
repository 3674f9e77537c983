"""Reading of YAML files, whole or a section of them."""

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from implicit_models.parameters.errors import MissingKeyError, ParameterError, closest_key, first_of
from implicit_models.parameters.names import TABLES, check_names
from implicit_models.parameters.sections import CONFIG, Parameters, frozen
from implicit_models.parameters.structure import check_structure
from implicit_models.parameters.words import refusal

T = TypeVar("T")

_read: dict[tuple[Path, str], Any] = {}  # the sections that were read, as they were


def read_section(key: str, schema: type[T], path: Path = Path("params.yaml")) -> T:
    """Read one section of a YAML file into a class of parameters.

    Parameters
    ----------
    key
        Dotted path of the section, ``"runs.a5_implicit_mamba2.model"``.
    schema
        The class, or the type of a single value (``int``, ``str``, ``tuple[int, ...]``).
    path
        The YAML file.

    Raises
    ------
    ParameterError
        Naming the full dotted key, its value, what is allowed and the closest valid key.
    """
    section = _select(key, path)
    try:
        return _reader(schema).validate_python(frozen(section))
    except ValidationError as error:
        found = refusal(key, section, error.errors()[0], schema)
        raise first_of([ParameterError(f"{path}: {each}") for each in found.every()]) from None


def read_content(path: Path = Path("params.yaml")) -> Any:
    """Read a whole YAML file, with its names checked.

    Raises
    ------
    ParameterError
        Where there is no such file, it is no YAML, or `check_names` refuses a name.
    """
    return copy.deepcopy(_checked(path))


def read_names(key: str, path: Path = Path("params.yaml")) -> tuple[str, ...]:
    """Read the names of the entries of a table such as ``"runs"``, in the file's order."""
    section = _select(key, path)
    if not isinstance(section, Mapping):
        raise ParameterError(
            f"{path}: {key} = {section!r} is not allowed; allowed is a table of named entries"
        )
    return tuple(section)


def forget_read() -> None:
    """Begin anew to keep what `changed_since_read` compares with."""
    _read.clear()


def changed_since_read(path: Path) -> str | None:
    """Return which value, of those read of a file, is another one now; None where none is.

    Tables of entries count as far as entries of them were read.

    Raises
    ------
    ParameterError
        Where the file cannot be read any more.
    """
    content = read_content(path)
    for (file, key), before in _read.items():
        if file == path and key not in TABLES:
            now = content
            for name in key.split("."):
                now = now.get(name, _NOTHING) if isinstance(now, Mapping) else _NOTHING
            if change := _first_change(key, before, now):
                return change
    return None


def _first_change(key: str, before: Any, now: Any) -> str | None:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        changes = (
            _first_change(f"{key}.{name}", before.get(name, _NOTHING), now.get(name, _NOTHING))
            for name in {**before, **now}
        )
        return next(filter(None, changes), None)
    same = before is now or (type(before) is type(now) and before == now)
    return None if same else f"{key} = {now} (it was {before})"


class _Nothing:
    def __str__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _select(key: str, path: Path) -> Any:
    node = _find(key, path)
    _read.setdefault((path, key), node)
    return node


def _find(key: str, path: Path) -> Any:
    node = _checked(path)
    prefix = ""
    for name in key.split("."):
        if not isinstance(node, Mapping) or not node:
            place = prefix.rstrip(".") or "the file"
            raise ParameterError(
                f"{path}: {key} does not exist: {place} = {node!r} has no keys; allowed is a "
                "section"
            )
        if name not in node:
            raise MissingKeyError(
                f"{path}: {prefix}{name} does not exist; {closest_key(name, node, prefix)}"
            )
        node = node[name]
        prefix += f"{name}."
    return copy.deepcopy(node)


def _checked(path: Path) -> Any:
    """Return what a file has, for a look: it is kept, and whoever changes it takes a copy."""
    try:
        content = _content(path, path.read_bytes())
    except FileNotFoundError:
        raise ParameterError(
            f"{path}: no such file; go to the repository's folder, or name another file"
        ) from None
    except RecursionError:
        raise ParameterError(f"{path}: cannot be read as YAML: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, OmegaConfBaseException, OSError) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"{path}: cannot be read as YAML: {error}") from None
    check_names(content, path)
    return content


@functools.lru_cache(maxsize=4)
def _content(path: Path, content: bytes) -> Any:
    """Parse a file of this content, which a command reads for each of many sections."""
    check_structure(content, path)
    return OmegaConf.to_container(OmegaConf.load(path))


@functools.lru_cache
def _reader(schema: Any) -> TypeAdapter[Any]:
    is_section = isinstance(schema, type) and issubclass(schema, Parameters)
    return TypeAdapter(schema, config=None if is_section else CONFIG)
