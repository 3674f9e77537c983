"""Dotted names of nested mappings, and what those who use them leave out."""

import pytest

from implicit_models.parameters.dotted import dotted
from pipelines.artifacts import _shown
from pipelines.sweeps.comparison import _flat
from pipelines.sweeps.own_files import named
from stages.tracked import numbers

NESTED = {"loss": 0.5, "ends": {"16": {"right": True, "note": "x"}, "empty": {}}, "all": [1]}


@pytest.mark.parametrize(
    ("content", "prefix", "leaves"),
    [
        (NESTED, "", ["loss", "ends.16.right", "ends.16.note", "ends.empty", "all"]),
        ({"a": {}}, "test.", ["test.a"]),
        ({3: {4: None}}, "", ["3.4"]),
        ({}, "", []),
        (7, "", [""]),
    ],
)
def test_leaves_come_in_order_under_dotted_names(content, prefix, leaves):
    assert [name for name, _ in dotted(content, prefix)] == leaves


def test_each_use_takes_its_own_leaves():
    assert numbers(NESTED, "test.") == {"test.loss": 0.5, "test.ends.16.right": True}
    assert dict(_shown(NESTED)) == {"loss": "0.5", "ends.16.right": "True", "ends.16.note": "x"}
    assert [*_flat(NESTED)] == ["loss", "ends.16.right", "ends.16.note", "all"]
    files = {"runs": {"a": {"model": {"source": "m", "size": "s"}}, "b": {"model": "n"}}}
    assert [*named(files)] == [("runs.a.model.source", "m"), ("runs.b.model", "n")]
