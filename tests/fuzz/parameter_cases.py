"""Parameter files with something wrong: unknown, missing, of a wrong type, out of range, odd."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from implicit_models.parameters.composition import compose
from tests.repositories import ROOT
from tests.stages.commands import STAGES

VALUES: list[Any] = [
    *(None, True, False, "", " ", "x", "../x", "/", "a b", "$(touch pwned)", "???", "1", "1e-3"),
    *(0, -1, 1, 2, 7, 10**6, 2**63, 2**64, 10**30, -(10**30)),
    *(0.0, -0.5, 0.5, 1.0, 1.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")),
    *([], [0], [1, 1], [1, 2], ["x"], [[]], [None], {}, {"x": 1}, {1: 2}, {"": None}),
]
TEXTS = [
    *("\n", "\t", "\0", "\r", "﻿", "\x85", "é", "😀", "[", "]", "{", "}", ":", "- ", "? ", "#"),
    *("&a ", "*a", "<<: ", "!!int ", "!!float ", "!!binary ", "!!timestamp ", "!!set ", "!!null "),
    *("!!python/name:os.system ", "${", "${seed}", "${oc.env:HOME}", "$(touch pwned)", "---\n"),
    *("...\n", "%YAML 9.9\n", "|\n", ">\n", "'", '"', "\\", "0x", "1_0", "1:30", ".inf", ".nan"),
    *("9" * 5000, "[" * 300, "a: &a [*a]\n", "seed: 1\n", "~", "yes", "=", "2001-01-01"),
]


class Case(NamedTuple):
    """A stage, the entry that it is asked for, and the file that it reads."""

    stage: str
    name: str
    text: bytes


def base() -> dict[str, Any]:
    """Return parameters with an entry in every table, which every stage accepts."""
    text, *others = (
        yaml.safe_load(compose(ROOT, [f"preset={preset}"]))
        for preset in ("downstream", "quick", "catbabi_quick", "regular_languages")
    )
    found = text | {"datasets": {}}
    for each in others:
        learned = next(iter(each["datasets"]))
        found["datasets"] |= {learned: each["datasets"][learned]}
        for table in ("runs", "baselines"):
            found[table] = found[table] | _first(each[table], learned)
        for section in ("evaluation", "sweep"):
            found[section] = found[section] | each[section]
    (benchmark,) = list(text["benchmarks"])[:1]
    found["benchmarks"] = {benchmark: text["benchmarks"][benchmark]}
    corpus = {**text["corpora"]["text"], "source": "owner/name", "tokenizer": "bytes"}
    corpus |= {"validation": {"share": 0.1}, "test": {"share": 0.1}}
    found["hub_corpora"] = {"pages": corpus}
    found["hub_tasks"] = {"hub_items": {"limit": 2}}
    found["readings"] = {
        "books_again": {"model": text["benchmarks"][benchmark]["model"], "corpus": "text"}
    }
    return found


def _first(table: Mapping[str, Any], dataset: str) -> dict[str, Any]:
    """Return the first entry that learns a data set."""
    name = next(name for name, entry in table.items() if entry["dataset"] == dataset)
    return {name: table[name]}


def generated(number: int, *, derandomize: bool = False) -> settings:
    """Return the settings under which so many cases are tried, each for itself."""
    return settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=derandomize,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def cases(base: Mapping[str, Any]) -> st.SearchStrategy[Case]:
    """Return what draws cases from a file that has nothing wrong."""
    places = list(_places(base))
    stages = stages_of(base)

    @st.composite
    def draw(draw: st.DrawFn) -> Case:
        stage, name = draw(st.sampled_from(stages))
        content = copy.deepcopy(base)
        for _ in range(draw(st.integers(1, 3))):
            _change(draw, content, draw(st.sampled_from(places)))
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()
        if draw(st.integers(0, 3)) == 0:
            text = _cut(draw, text)
        return Case(stage, name, text)

    return draw()


def stages_of(base: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each stage with each entry that it can be asked for."""
    return [
        (stage, name)
        for stage, tables in STAGES.items()
        for name in [name for table in tables for name in base.get(table) or ()] or [""]
    ]


def _places(node: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    if isinstance(node, Mapping):
        for key in node:
            yield from _places(node[key], (*place, key))


def _change(draw: st.DrawFn, content: Any, place: tuple[Any, ...]) -> None:
    """Change what a place has, or the place itself, unless a change before has removed it."""
    parent = content
    for key in place[:-1]:
        if not isinstance(parent, dict) or key not in parent:
            return
        parent = parent[key]
    key = place[-1]
    if not isinstance(parent, dict) or key not in parent:
        return
    how = draw(st.sampled_from(["value", "value", "value", "odd", "delete", "rename", "add", "of"]))
    if how == "value":
        parent[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    elif how == "odd":
        parent[key] = draw(
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(max_size=4), inner, max_size=3)
                ),
                max_leaves=4,
            )
        )
    elif how == "delete":
        del parent[key]
    elif how == "rename":
        value = parent.pop(key)
        parent[draw(st.sampled_from([f"{key}x", str(key)[:-1], "a b", "..", "/tmp", 1, None]))] = (
            value
        )
    elif how == "add":
        parent[draw(st.sampled_from(["x", "seed", "kind", "model", key, "0"]))] = draw(
            st.sampled_from(VALUES)
        )
    else:  # a value of another place of the same depth
        siblings = [each for each in parent if each != key]
        if siblings:
            parent[key] = copy.deepcopy(parent[draw(st.sampled_from(siblings))])


def _cut(draw: st.DrawFn, text: bytes) -> bytes:
    """Put something into the text, or take something out of it, where YAML has no say."""
    start = draw(st.integers(0, len(text)))
    how = draw(st.sampled_from(["insert", "byte", "truncate", "without"]))
    if how == "insert":
        return text[:start] + draw(st.sampled_from(TEXTS)).encode() + text[start:]
    if how == "byte":
        return text[:start] + draw(st.binary(min_size=1, max_size=2)) + text[start:]
    if how == "truncate":
        return text[:start]
    return text[:start] + text[start + draw(st.integers(1, 30)) :]
