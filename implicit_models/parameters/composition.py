"""What `dvc exp run` would write to params.yaml, composed from conf/ without running anything."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from implicit_models.parameters.errors import ParameterError, closest_words, similar_name
from implicit_models.parameters.names import check_names
from implicit_models.parameters.structure import check_interpolations

CONFIGURATION = "conf"
_PACKAGE = "# @package _global_"
_MOST_USERS = 8  # of keys that there are not, in a line


class CompositionError(ParameterError):
    """Nothing can be composed: a preset or a key that there is not, or no override."""


def compose(root: Path, overrides: Sequence[str]) -> str:
    """Return the content of params.yaml that a repository's configuration composes to.

    Parameters
    ----------
    root
        The repository.
    overrides
        Hydra's, as `dvc exp run -S` takes them.

    Raises
    ------
    CompositionError
        Where Hydra refuses an override: one line with what is closest to it.
    ParameterError
        Where an entry has a name that is not allowed, or a value of the configuration asks for
        more than another value, as ``${oc.env:HOME}`` does.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    for file in sorted((root / CONFIGURATION).rglob("*.yaml")):
        check_interpolations(file.read_bytes(), file.relative_to(root))
    try:
        text = _composed(root, overrides)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise CompositionError(_in_one_line(root, error, overrides)) from error
    content = yaml.safe_load(text)
    _check_package(root, content, overrides)
    check_names(content)
    return text


def presets(root: Path) -> list[str]:
    """Return the names of all presets."""
    return sorted(path.stem for path in (root / CONFIGURATION / "preset").glob("*.yaml"))


def preset_and_settings(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Divide arguments into a preset, NAME at the beginning or preset=NAME, and settings.

    Raises
    ------
    CompositionError
        Where two presets are named or one without a name, or something is no setting.
    """
    first = [f"preset={each}" for each in arguments[:1] if not _is_setting(each)]
    rest = list(arguments[len(first) :])
    for place, each in enumerate(rest):
        if not _is_setting(each):
            raise CompositionError(_no_setting(each, rest[:place], rest[place + 1 :]))
    chosen = _chosen(rest)
    named = list(dict.fromkeys(map(_name, [*first, *chosen])))
    if "" in named:
        raise CompositionError(
            "the name of the preset is empty; `implicit-models presets` lists them"
        )
    if len(named) > 1:
        raise CompositionError(
            f"one preset is composed, and {' and '.join(named)} are named; leave all but one out"
        )
    return (named or [None])[0], [each for each in rest if each not in chosen]


def _no_setting(argument: str, before: Sequence[str], after: Sequence[str]) -> str:
    """Return what to write in place of an argument that is no setting."""
    if before and _is_open(before[-1]):
        whole = f"{before[-1]} {argument}"
        for more in after:
            whole += f" {more}" if _is_open(whole) else ""
        quoted = f"write '{whole}'" if not _is_open(whole) else f"put {before[-1]}... in quotes"
        return f"{argument!r} is no setting; the shell splits at spaces: {quoted}"
    if re.match(r"\+?[a-z_]+\.\w", argument) and not argument.endswith((".yaml", ".yml")):
        return f"{argument!r} is no setting; write {argument}=VALUE, without spaces"
    return (
        f"{argument!r} is no setting (KEY=VALUE, +KEY=VALUE or ~KEY); a preset is named before "
        "all settings, and only one"
    )


def _is_open(text: str) -> bool:
    return any(text.count(left) > text.count(right) for left, right in ("[]", "()", "{}"))


def _is_setting(argument: str) -> bool:
    return "=" in argument[1:] or argument.startswith("~")


def preset_of(root: Path, overrides: Sequence[str]) -> str | None:
    """Return the preset that overrides build on, theirs or the configuration's, if there is one."""
    if chosen := _chosen(overrides):
        return _name(chosen[-1])
    content = yaml.safe_load((root / CONFIGURATION / "config.yaml").read_bytes()) or {}
    for each in content.get("defaults") or []:
        for key, name in each.items() if isinstance(each, Mapping) else ():
            if key.split()[-1] == "preset" and isinstance(name, str):  # optional, override
                return name.removesuffix(".yaml")
    return None


def _composed(root: Path, overrides: Sequence[str]) -> str:
    from dvc.utils.hydra import compose_and_dump

    with TemporaryDirectory() as folder:
        made = Path(folder) / "params.yaml"
        configuration = str(root.resolve() / CONFIGURATION)
        compose_and_dump(str(made), configuration, None, "config", str(root), list(overrides))
        return made.read_text(encoding="utf-8")


def _check_package(root: Path, content: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Check that presets put their keys where they belong, which their first line says.

    Raises
    ------
    CompositionError
        Where one does not.
    """
    chosen = _chosen(overrides)
    if "preset" not in content or not chosen:
        return
    for file in _built_from(root / CONFIGURATION / "preset", _name(chosen[-1])):
        header = itertools.takewhile(_is_of_header, file.read_text("utf-8-sig").splitlines())
        if not any(re.search(r"@\s*package\s+_global_\s*$", line) for line in header):
            name = file.relative_to(root)
            raise CompositionError(f"{name}: its first line must be {_PACKAGE!r}")


def _chosen(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that choose a preset, the last of which holds."""
    return [override for override in overrides if re.match(r"\+?preset=", override)]


def _name(override: str) -> str:
    """Return which preset ``preset=NAME`` names: Hydra takes quotes and a suffix as well."""
    return override.partition("=")[2].strip().strip("'\"").removesuffix(".yaml")


def _is_of_header(line: str) -> bool:
    return not line.strip() or re.match(r"\s*#\s*@", line) is not None  # as Hydra reads it


def _built_from(folder: Path, name: str) -> list[Path]:
    """Return the files of a preset and of those that it builds on, its own first."""
    names, files = [name], []
    for each in names:
        file = folder / f"{each}.yaml"
        if file.is_file():
            files.append(file)
            defaults = (yaml.safe_load(file.read_bytes()) or {}).get("defaults") or []
            names += [more for more in defaults if isinstance(more, str) and more not in names]
    return files


def _in_one_line(root: Path, error: Exception, overrides: Sequence[str]) -> str:
    """Return what was wrong and what is closest to it, from Hydra's paragraph."""
    said, *more = (line.strip() for line in str(error).strip().splitlines())
    said = said.rstrip(".")
    said += "".join(f", at {line[10:]}" for line in more if line.startswith("full_key: "))
    if type(error).__name__ == "InterpolationKeyError":
        said += _users_of_missing(root, overrides)
    chosen = _chosen(overrides)
    known = presets(root)
    for override in chosen:
        if _name(override) not in known:
            return _no_preset(root, override.partition("=")[2], known)
    if named := re.search(r"In '([^']+)': Could not (?:load|find) '([^']+)'", said):
        file = f"{CONFIGURATION}/{named[1].removesuffix('.yaml')}.yaml"
        return f"{file}: defaults: {_no_file(root, named[2])}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return _in_yaml(root, error, error.problem_mark)
    preset = preset_of(root, overrides)
    source = f"{CONFIGURATION}/{'config' if preset is None else f'preset/{preset}'}.yaml"
    try:
        keys = list(_keys(yaml.safe_load(_composed(root, chosen))))
    except Exception:  # the preset itself is wrong, whatever is set on top of it
        return f"{source}: {said}"
    unresolved = _unresolved(root, chosen)
    for override in overrides:
        key = re.split("[=@]", override)[0].lstrip("+~")
        if override not in chosen and (said_so := _borrowed(unresolved, key)):
            return f"{source}: {said_so}"
        if override not in chosen and not override.startswith("+") and key not in keys:
            closest = _closest_key(key, keys)
            meant = f"the closest valid key is {closest}" if closest else "none is like it"
            return (
                f"{source}: {key} does not exist; {meant} (what docs/parameters.md has beside is "
                f"added by +{key}=VALUE)"
            )
    settings = " ".join(each for each in overrides if each not in chosen)
    if type(error).__name__ == "OverrideParseException":
        said += "; a list is written KEY=[1,2], and a text with signs in it 'KEY=\"a: b\"'"
    return f"{settings}: cannot be composed: {said}"


def _closest_key(key: str, keys: Sequence[str]) -> str | None:
    """Return which key was probably meant; None where none is like it."""
    names = key.split(".")
    of_other_table = key.partition(".")[2]
    for each in keys:
        if each.endswith(f".{key}") or of_other_table == each.partition(".")[2] != "":
            return each
    found = ""
    for place, name in enumerate(names, 1):
        prefix = f"{found}." if found else ""
        inside = [each.removeprefix(prefix) for each in keys if each.startswith(prefix)]
        known = {each.partition(".")[0] for each in inside}
        closest = name if name in known else similar_name(name, sorted(known))
        if closest is None:
            section_left_out = place == len(names)
            below = [each for each in inside if each.rpartition(".")[2] == name]
            return prefix + below[0] if section_left_out and below else None
        found = prefix + closest
    return found


def _no_preset(root: Path, name: str, known: Sequence[str]) -> str:
    folder = Path(CONFIGURATION, "preset")
    if (root / folder / f"{name}.yml").exists():
        return f"there is no preset {name}; rename {folder}/{name}.yml to {name}.yaml"
    if not known:
        return f"there is no preset {name}: {folder} has none here; go to the repository's folder"
    return f"there is no preset {name}; {closest_words(Path(name).stem, known)}"


def _no_file(root: Path, name: str) -> str:
    """Return what a list of defaults may name in place of a file of the configuration."""
    if name.startswith("preset/"):
        return _no_preset(root, name.removeprefix("preset/"), presets(root))
    shared = sorted(f"/shared/{file.stem}" for file in (root / CONFIGURATION / "shared").glob("*"))
    if not shared:
        return f"there is no /{name}: {CONFIGURATION}/shared is empty"
    return f"there is no /{name}; {closest_words(f'/{name}', shared)}"


def _in_yaml(root: Path, error: yaml.MarkedYAMLError, mark: yaml.Mark) -> str:
    """Return where a file is no YAML, and why."""
    file = Path(mark.name)
    name = file.relative_to(root.resolve()) if file.is_relative_to(root.resolve()) else file
    why = "a tab is not allowed; use spaces" if "'\\t'" in str(error.problem) else error.problem
    return f"{name}: line {mark.line + 1}, column {mark.column + 1}: {why}"


def _users_of_missing(root: Path, overrides: Sequence[str]) -> str:
    """Return in words which keys have the values of keys that there are not."""
    values = _unresolved(root, overrides)
    users = [
        f"{key} = {value}"
        for key, value in values.items()
        if isinstance(value, str)
        and any(named not in values for named in re.findall(r"\$\{([^{}]+)\}", value))
    ]
    if not users:
        return ""
    if len(users) > _MOST_USERS:
        users[_MOST_USERS:] = [f"and {len(users) - _MOST_USERS} more"]
    return (
        f"; give a value of their own to what names a key that does not exist: {', '.join(users)}"
    )


def _borrowed(values: Mapping[str, Any], key: str) -> str:
    """Return in words that a section is another's, in which alone a key of it can be set."""
    *sections, name = key.split(".")
    for end in range(len(sections), 0, -1):
        section, value = ".".join(sections[:end]), values.get(".".join(sections[:end]))
        if isinstance(value, str) and (found := re.fullmatch(r"\$\{([^{}]+)\}", value)):
            inside = ".".join([found[1], *sections[end:], name])
            return (
                f"{key} is not allowed: {section} is {value}; set {inside}, which both have, or "
                f"give {section} values of its own in a preset"
            )
    return ""


def _unresolved(root: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return all values and sections under their dotted keys, interpolations as they stand."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(root.resolve() / CONFIGURATION), version_base=None):
        composed = compose("config", list(overrides))
    content: Any = OmegaConf.to_container(composed, resolve=False)
    return dict(_values(content))


def _keys(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of all values and sections."""
    for key, _ in _values(content, prefix):
        yield key


def _values(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values and sections under their dotted keys."""
    for name, value in content.items():
        yield f"{prefix}{name}", value
        if isinstance(value, Mapping):
            yield from _values(value, f"{prefix}{name}.")
