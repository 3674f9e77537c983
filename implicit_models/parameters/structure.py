"""What a YAML file may consist of.

A file of parameters may come from a stranger. It must neither take a minute to be refused, nor hand
what is in the environment to whoever reads the tracked runs. And DVC, which decides by it what has
to run again, must read the same values in it as the stages.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from implicit_models.parameters.errors import ParameterError

MAX_VALUES, MAX_DEPTH = 20_000, 40

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTERPOLATION = re.compile(r"\$\{[\w.\[\]-]+\}")
# Words for truth; octal, binary and sexagesimal numbers, and dates.
_AMBIGUOUS = re.compile(
    r"(?i:yes|no|on|off)|[-+]\.[0-9].*|[-+]?0[0-9_]+|[-+]?0[ob][0-7_]+|[-+]?[0-9][0-9_]*(:[0-9]+)+(\.[0-9_]*)?"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*|[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?"
)


def check_structure(content: bytes, path: Path) -> None:
    """Check a YAML file before its values are made.

    Raises
    ------
    ParameterError
        Where it has too many values or levels, counted after its aliases are followed; where an
        alias is in what it stands for; where it has a tag, such as ``!!timestamp``; or where a
        value would be another one for DVC: one that
        stands for another value, or that YAML 1.1 and 1.2 read differently, such as ``010``.
    yaml.YAMLError
        Where it is no YAML.
    """
    sizes: dict[str, int] = {}  # of what has an anchor and is complete
    open_anchors: list[str | None] = []
    begun: list[int] = []
    count = 0
    for event in yaml.parse(content, _LOADER):
        place = f"{path}, line {event.start_mark.line + 1}"
        if tag := getattr(event, "tag", None):
            raise ParameterError(f"{place}: the tag {tag} is not allowed; allowed are plain values")
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            begun.append(count)
            count += 1
            if len(begun) > MAX_DEPTH:
                raise ParameterError(
                    f"{place}: is more than {MAX_DEPTH} levels deep, the most that is allowed; "
                    "nest less"
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            size = count - begun.pop()
            if anchor := open_anchors.pop():
                sizes[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in open_anchors:
                raise ParameterError(
                    f"{place}: *{event.anchor} stands within itself; write out what it stands for"
                )
            count += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            _check_scalar(event, place)
            count += 1
        if count > MAX_VALUES:
            raise ParameterError(
                f"{place}: there are more than {MAX_VALUES} values, the most that are allowed; "
                "write fewer"
            )


def check_interpolations(content: bytes, path: Path) -> None:
    """Check that a YAML file, of any size, asks for nothing but its own values.

    Raises
    ------
    ParameterError
        Where a value asks for more than another value, as ``${oc.env:HOME}`` does.
    """
    try:
        for event in yaml.parse(content, _LOADER):
            if isinstance(event, yaml.ScalarEvent):
                _check_interpolation(event.value, f"{path}, line {event.start_mark.line + 1}")
    except yaml.YAMLError:  # a template of YAML, which nothing reads as it is
        _check_interpolation(content.decode(errors="replace"), str(path))


def load_plain(content: bytes) -> Any:
    """Load YAML of any size, whoever has written it, as plain values.

    Raises
    ------
    ValueError
        Where it is more than `MAX_DEPTH` levels deep; libyaml would end the process.
    yaml.YAMLError
        Where it is no YAML.
    """
    depth = 0
    for event in yaml.parse(content, _LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is more than {MAX_DEPTH} levels deep")
    return yaml.load(content, _LOADER)


def _check_scalar(scalar: yaml.ScalarEvent, place: str) -> None:
    if "${" in scalar.value:
        raise ParameterError(
            f"{place}: {scalar.value[:200]!r} is not allowed; DVC would not see what it stands for "
            "change. Write the value, or use a preset of conf/, where `${KEY}` may stand"
        )
    if scalar.implicit[0] and _AMBIGUOUS.fullmatch(scalar.value):
        raise ParameterError(
            f"{place}: {scalar.value} is not allowed; versions of YAML read it differently. Write "
            "a text in quotes, true or false, and a number in decimal digits"
        )


def _check_interpolation(value: str, place: str) -> None:
    if "${" in _INTERPOLATION.sub("", value):
        raise ParameterError(
            f"{place}: {value[:200]!r} is not allowed; allowed is ${{KEY}}, another of its values"
        )
