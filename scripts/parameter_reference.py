"""Write docs/parameters.md: every key of params.yaml, from the classes that read it.

    python scripts/parameter_reference.py

`tests/test_parameter_reference.py` fails where the page is not what this writes.
"""

import argparse
import importlib
import inspect
import json
import pkgutil
import re
import typing
from collections.abc import Iterator
from pathlib import Path

from pydantic.fields import FieldInfo

from implicit_models.families.parameters import ModelParameters
from implicit_models.families.table import FAMILIES
from implicit_models.files import write_whole
from implicit_models.parameters import Parameters
from implicit_models.parameters.words import in_words
from implicit_models.problems.downstream.tasks import TASKS
from implicit_models.problems.table import KINDS, TABLES, TESTED_APART
from implicit_models.reporting.parameters import ReportParameters
from implicit_models.training.parameters import MonitoringParameters
from stages.entries import BaselineParameters, MatchedParameters, RunParameters

PAGE = Path(__file__).parents[1] / "docs" / "parameters.md"
_BEFORE = """# Parameters

Every key of `params.yaml`, table by table. `scripts/parameter_reference.py` writes this page from
the classes that read the keys. A key without a default must be given. How presets make a
`params.yaml` is on the page of [presets](presets.md).
"""
_EVERYWHERE = {"kind": "The kind of problem."} | dict.fromkeys(TASKS, "Of this task.")
_REFERENCE = re.compile(r"As (in `\w+`|there)[;.]? ?")
_ENTRY = re.compile(r"(?m)^(\S.*)\n((?:(?: {4}.*)?\n)+)")


def main() -> None:
    """Write the page."""
    argparse.ArgumentParser(description="Write docs/parameters.md.").parse_args()
    write_whole(PAGE, reference())


def reference() -> str:
    """Return the page."""
    places: dict[type[Parameters], list[str]] = {}
    for name, schema in _roots():
        _add(name, schema, places)
    return "\n".join([_BEFORE, *(_section(schema, places) for schema in places)])


def _roots() -> Iterator[tuple[str, type[Parameters]]]:
    """Yield what stands at the top of params.yaml, under the keys of its place."""
    kinds = {kind: importlib.import_module(f"{path}.parameters") for kind, path in KINDS.items()}
    for table, only in TABLES.items():
        for kind, module in kinds.items():
            if table in module.SCHEMAS:
                name = f"{table}.NAME" if only == kind else f"{table}.NAME, kind: {kind}"
                yield name, module.SCHEMAS[table]
    yield "runs.NAME", RunParameters
    yield "upcycled.NAME", RunParameters
    for family, path in FAMILIES.items():
        yield f"model, family: {family}", pkgutil.resolve_name(path)
    yield "baselines.NAME", BaselineParameters
    yield "matched.NAME", MatchedParameters
    for table, kind in TESTED_APART.items():
        yield f"{table}.NAME", kinds[kind].ENTRIES[table]
    yield "monitoring", MonitoringParameters
    for kind, module in kinds.items():
        for section in ("evaluation", "sweep"):
            schema = getattr(module, section.upper())
            if schema is not None:
                yield f"{section}.{kind}", schema
    yield "report", ReportParameters


def _add(name: str, schema: type[Parameters], places: dict[type[Parameters], list[str]]) -> None:
    if schema is ModelParameters:
        return
    is_new = schema not in places
    places.setdefault(schema, []).append(name)
    for key, field in schema.model_fields.items() if is_new else ():
        for nested in _classes(field.annotation):
            path, comma, kind = name.partition(", ")
            _add(f"{path}.{key}{comma}{kind}", nested, places)


def _classes(hint: typing.Any) -> list[type[Parameters]]:
    if inspect.isclass(hint) and issubclass(hint, Parameters):
        return [hint]
    return [found for each in typing.get_args(hint) for found in _classes(each)]


def _section(schema: type[Parameters], places: dict[type[Parameters], list[str]]) -> str:
    summary = _plain(inspect.cleandoc(schema.__doc__ or "").split("\n\n")[0])
    name, *others = dict.fromkeys(places[schema])
    if others:
        summary += f" The same keys are in {', '.join(f'`{each}`' for each in others)}."
    lines = [f"## {name}", "", summary, "", "| key | value | default | |", "|---|---|---|---|"]
    said, notes = descriptions(schema)
    described = _EVERYWHERE | said
    for key, field in schema.model_fields.items():
        if key not in described:
            raise SystemExit(
                f"error: {schema.__module__}.{schema.__name__} has no word on {key}: "
                "add it to the section Attributes of its docstring"
            )
        cells = [f"`{key}`", _value(field, places), _default(field), described[key]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(line for note in notes for line in (note, ""))])


def _value(field: FieldInfo, places: dict[type[Parameters], list[str]]) -> str:
    nested = _classes(field.annotation)
    if nested == [ModelParameters]:
        return "a section, by its `family`"
    if nested:
        return " or ".join(f"[{places[each][0]}](#{_anchor(places[each][0])})" for each in nested)
    words = in_words(field.annotation, field.metadata)
    return words.replace("|", "\\|").replace("'", "`")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.default
    return f"`{json.dumps(dict(value) if isinstance(value, Parameters) else value)}`"


def descriptions(schema: type[Parameters]) -> tuple[dict[str, str], list[str]]:
    """Return what is said of each key of a class, and what is said of several at once.

    Both are in the docstrings of the class and of those that it is made from. What is said "as in"
    one of these is taken from there, and what is said beside that is the second.
    """
    said: dict[str, str] = {}
    notes = []
    for each in schema.__mro__:
        text = inspect.cleandoc(each.__doc__ or "")
        _, _, attributes = text.partition("Attributes\n----------\n")
        attributes = re.split(r"\n\w+\n-{3,}\n", attributes)[0] + "\n"
        for match in _ENTRY.finditer(attributes):
            keys, text = match[1].split(", "), _plain(inspect.cleandoc(match[2]))
            referring = _REFERENCE.match(text)
            if referring is None:
                said = dict.fromkeys(keys, text) | said
            elif more := text[referring.end() :]:
                named = ", ".join(f"`{key}`" for key in keys)
                notes.append(f"{named}: {more[:1].lower() + more[1:]}")
    return said, notes


def _plain(text: str) -> str:
    """Return reStructuredText as a line of Markdown."""
    return re.sub(r"`+", "`", " ".join(text.split())).replace("|", "\\|")


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    main()
