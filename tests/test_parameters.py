"""The strict reader: what it accepts, and how it refuses."""

import copy
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from dvc.utils.serialize import load_yaml
from pydantic import Field, ValidationError

from implicit_models.parameters import (
    Chosen,
    Distinct,
    ParameterError,
    Parameters,
    changed_since_read,
    digest,
    forget_read,
    read_content,
    read_names,
    read_section,
)
from implicit_models.parameters.words import in_words


class LengthsParameters(Parameters):
    start: int = Field(ge=1)
    end: int = Field(ge=1)

    def check(self):
        if self.end < self.start:
            raise ParameterError(f"end = {self.end} is below start = {self.start}")


class PhaseParameters(Parameters):
    family: Literal["mamba2", "lstm"] = "mamba2"
    max_steps: int = Field(ge=1)
    tolerance: float = Field(gt=0.0, lt=1.0)
    implicit: bool = True
    num_heads: int | None = Field(default=None, ge=1)
    tolerances: tuple[Annotated[float, Field(gt=0.0)], ...] = (0.1,)
    lengths: LengthsParameters | None = None


RUN = "runs.a5_implicit_mamba2"


@pytest.fixture
def read(tmp_path):
    """Read the run's free phase after setting `text` as its content."""

    def read(text, key=f"{RUN}.free", schema=PhaseParameters):
        path = tmp_path / "params.yaml"
        path.write_text(f"runs:\n  a5_implicit_mamba2:\n    seed: 3\n    free: {{{text}}}\n")
        return read_section(key, schema, path)

    return read


def test_reads_a_section(read):
    assert read("max_steps: 16, tolerance: 5e-2") == PhaseParameters(max_steps=16, tolerance=0.05)


def test_reads_nested_sections_and_tuples(read):
    section = read(
        "max_steps: 1, tolerance: 0.5, lengths: {start: 2, end: 3}, tolerances: [0.5, 2], "
        "num_heads: null"
    )
    assert section.lengths == LengthsParameters(start=2, end=3)
    assert section.tolerances == (0.5, 2.0)
    assert all(isinstance(value, float) for value in section.tolerances)
    assert section.num_heads is None
    assert hash(section)


def test_reads_single_values_and_names(read, tmp_path):
    assert read("", key=f"{RUN}.seed", schema=int) == 3
    assert read_names("runs", tmp_path / "params.yaml") == ("a5_implicit_mamba2",)
    with pytest.raises(ParameterError, match="seed = 3 is not allowed; .* a table"):
        read_names(f"{RUN}.seed", tmp_path / "params.yaml")


def test_reads_tables_and_lists(read):
    text = "max_steps: 1, tolerances: [1, 2]"
    plain = {"max_steps": 1, "tolerances": [1, 2]}
    assert read(text, schema=dict[str, Any]) == plain
    assert read(text, key=f"{RUN}.free.tolerances", schema=tuple[int, ...]) == (1, 2)
    assert digest(read(text, schema=dict[str, Any])) == digest(plain)
    with pytest.raises(ParameterError, match="seed = 3 is not allowed; allowed is str"):
        read("", key=f"{RUN}.seed", schema=str)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_step: 16, tolerance: 0.1", ["max_step = 16", "not a known", f"{RUN}.free.max_steps"]),
        ("tolerance: 0.1", ["max_steps is missing", "int, at least 1"]),
        ("max_steps: '???', tolerance: 0.1", ["max_steps is missing"]),
        ("max_steps: 0, tolerance: 0.1", ["max_steps = 0", "at least 1"]),
        ("max_steps: many, tolerance: 0.1", ["max_steps = 'many'", "int, at least 1"]),
        ("max_steps: '16', tolerance: 0.1", ["max_steps = '16'", "int"]),
        ("max_steps: 1.5, tolerance: 0.1", ["max_steps = 1.5", "int"]),
        ("max_steps: true, tolerance: 0.1", ["max_steps = True", "int"]),
        ("max_steps: null, tolerance: 0.1", ["max_steps = None", "int"]),
        ("max_steps: [1], tolerance: 0.1", ["max_steps = [1]", "int"]),
        ("max_steps: 1e3, tolerance: 0.1", ["max_steps = 1000.0", "int"]),
        ("max_steps: 1, tolerance: true", ["tolerance = True", "float, above 0.0"]),
        ("max_steps: 1, tolerance: '0.1'", ["tolerance = '0.1'", "float, above 0.0"]),
        ("max_steps: 1, tolerance: .1, num_heads: .inf", ["num_heads = inf", "int | null"]),
        ("max_steps: 1, tolerance: .1, tolerances: [.inf]", ["tolerances = [inf]", "above 0.0"]),
        ("max_steps: 1, tolerance: .1, tolerances: [true]", ["tolerances = [True]", "above 0.0"]),
        ("max_steps: 1, tolerance: .1, 3: 4", [".3 = 4 is not a known setting"]),
        (
            "max_steps: 1, tolerance: .1, 7)",
            ["7) = None is not", "; a text with a comma stands in"],
        ),
        ("max_steps: 1, tolerance: .1, check: 4", ["check = 4 is not a known setting"]),
        ("max_steps: 0, tolerance: 2, x: 3", ["x = 3 is not a known"]),
        ("max_steps: 0, tolerance: 2", ["max_steps = 0 is"]),
        ("max_steps: 1, tolerance: 1.0", ["tolerance = 1.0", "above 0.0, below 1.0"]),
        ("max_steps: 1, tolerance: .nan", ["tolerance = nan", "above 0.0"]),
        ("max_steps: 1, tolerance: .1, implicit: 1", ["implicit = 1", "bool"]),
        ("max_steps: 1, tolerance: .1, num_heads: 0", ["num_heads = 0", "at least 1"]),
        ("max_steps: 1, tolerance: .1, tolerances: [1, 0]", ["tolerances = [1, 0]", "above"]),
        ("max_steps: 1, tolerance: .1, tolerances: 1", ["tolerances = 1", "list[float]"]),
        (
            "max_steps: 1, tolerance: .1, family: mamba",
            ["'mamba'", "'lstm'", "closest is 'mamba2'"],
        ),
        ("max_steps: 1, tolerance: .1, lengths: 3", ["lengths = 3 is not a section", "start, end"]),
        ("max_steps: 1, tolerance: .1, lengths: {start: 1}", ["free.lengths.end is missing"]),
        (
            "max_steps: 1, tolerance: .1, lengths: {start: 2, end: 1}",
            ["free.lengths.end = 1 is below start = 2"],
        ),
        (
            "max_steps: 1, tolerance: .1, lengths: {start: 2, end: 0}",
            ["free.lengths.end = 0", "at least 1"],
        ),
    ],
)
def test_refusal_names_key_value_and_what_is_allowed(read, text, words):
    with pytest.raises(ParameterError) as caught:
        read(text)
    message = str(caught.value)
    for word in [f"params.yaml: {RUN}.free.", *words]:
        assert word in message


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (
            "runs.a5_implicit_mamba.free",
            ["runs.a5_implicit_mamba does", f"closest valid key is {RUN} "],
        ),
        ("run.a5_implicit_mamba2", ["run does", "closest valid key is runs "]),
        (f"{RUN}.fre", [f"{RUN}.fre does", f"closest valid key is {RUN}.free "]),
        (f"{RUN}.seed.x", [f"{RUN}.seed = 3 has no keys"]),
    ],
)
def test_unknown_section_names_the_closest(read, key, words):
    with pytest.raises(ParameterError) as caught:
        read("max_steps: 1, tolerance: 0.1", key=key)
    for word in words:
        assert word in str(caught.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(ParameterError, match="no such file; go to the repository's folder"):
        read_section("runs", PhaseParameters, tmp_path / "params.yaml")
    broken = tmp_path / "broken.yaml"
    for text in ("a: [1", "a: 1\na: 2\n"):
        broken.write_text(text)
        with pytest.raises(ParameterError, match="broken.yaml: cannot be read as YAML"):
            read_section("a", PhaseParameters, broken)
    broken.write_text("")
    with pytest.raises(ParameterError, match="has no keys"):
        read_section("a", PhaseParameters, broken)


ODD = {
    "5,000 digits": "a: " + "1" * 5000,
    "no integer": "a: !!int abc",
    "no float": "a: !!float abc",
    "a date": "a: !!timestamp 2001-01-01",
    "an alias in its own list": "a: &x [*x]",
    "an alias in its own table": "a: &x {b: *x}",
    "300 levels": "a: " + "[" * 300 + "]" * 300,
    "500,000 levels": "a: " + "[" * 500_000,
    "half a million values by aliases": "a0: &a0 [1]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 7)),
    "not UTF-8": b"a: \xff",
    "UTF-16 cut off": b"\xff\xfea",
    "a zero": "a: \0",
    "a value in itself": "a: ${b}\nb: ${a}",
    "the environment": "a: ${oc.env:HOME}",
    "another value": "a: ${b.c}\nb: {c: 1}",
    "an octal number": "a: 010",
    "a sexagesimal number": "a: 1:30",
    "a word for truth": "a: yes",
    "the environment, hidden": "a: ${${b}:HOME}\nb: oc.env",
    "another resolver": "a: x${ oc.decode : 1}",
    "a key that is no date": "!!timestamp a: 1",
    "a tag": "a: !!str 1",
    "code": "a: !!python/object/apply:os.system ['touch pwned']",
    "two documents": "a: 1\n---\na: 2",
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_odd_yaml_is_refused_at_once_in_one_line(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    began = time.process_time()
    with pytest.raises(ParameterError, match=rf"^{path}(:|, line \d+:) ") as caught:
        read_section("a", int, path)
    assert time.process_time() - began < 1
    assert "HOME" not in os.environ or os.environ["HOME"] not in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


ODD_VALUES = [
    *("010", "0o10", "0b11", "0x1F", "-07", "+012", "1_000", "1_0.5", "1:30", "1:30:15.5", "0_1"),
    *("yes", "No", "ON", "off", "y", "true", "True", "TRUE", "tRue", "null", "~", "Null", ""),
    *("1e-3", "1.e5", ".5", "-.5", "+1", "1E3", "1e+3", ".inf", "-.INF", ".nan", "12e03", "0"),
    *("2001-01-01", "2001-1-1 1:2:3", "'010'", '"yes"', "1.", "0.10", "00", "1__0", "_1"),
]


@pytest.mark.parametrize("text", ODD_VALUES)
def test_dvc_reads_the_same_values_or_they_are_refused(tmp_path, text):
    """It decides by them what has to run again."""
    path = tmp_path / "params.yaml"
    path.write_text(f"a: {text}\n")
    theirs = load_yaml(str(path))["a"]
    try:
        ours = read_content(path)["a"]
    except ParameterError as error:
        assert "line 1: " in str(error)
    else:
        assert (type(ours), repr(ours)) == (type(theirs), repr(theirs))


def test_what_has_changed_since_it_was_read(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("seed: 1\nruns: {a: {size: 1, on_top: {x: 1}}, b: {size: 2}}\n")
    forget_read()
    read_section("runs.a", dict[str, Any], path)
    read_section("runs.a.on_top.x", int, path)
    read_names("runs", path)
    assert changed_since_read(path) is None
    path.write_text("seed: 2\nruns: {a: {on_top: {x: 1}, size: 1}, b: {size: 3}, c: {}}\n")
    assert changed_since_read(path) is None
    for content, said in (
        ("runs: {a: {size: 1, on_top: {x: 2}}}", "runs.a.on_top.x = 2 (it was 1)"),
        ("runs: {a: {size: 1, on_top: {x: 1, y: 0}}}", "runs.a.on_top.y = 0 (it was nothing)"),
        ("runs: {a: {size: 1.0, on_top: {x: 1}}}", "runs.a.size = 1.0 (it was 1)"),
        ("runs: {}", "runs.a = nothing (it was "),
    ):
        path.write_text(content)
        found = changed_since_read(path)
        assert found is not None and found.startswith(said)
    forget_read()
    assert changed_since_read(path) is None


def test_distinct_choices():
    class TasksParameters(Parameters):
        names: Distinct[Literal["piqa", "arc"]] | None = None

    assert TasksParameters().names is None
    assert TasksParameters(names=("arc", "piqa")).names == ("arc", "piqa")
    allowed = "names = {} is not allowed; allowed is list[str] | null, one of 'piqa', 'arc', "
    allowed += "one element or more and each only once"
    for names, closest in [((), ""), (("arc", "arc"), ""), (("piqua",), "; the closest is 'piqa'")]:
        with pytest.raises(ParameterError) as caught:
            TasksParameters(names=names)
        assert str(caught.value) == allowed.format(names) + closest


def test_changed_copies_are_validated():
    first = PhaseParameters(max_steps=1, tolerance=0.1)
    assert first.replace(max_steps=2) == PhaseParameters(max_steps=2, tolerance=0.1)
    with pytest.raises(ParameterError, match="^max_steps = 0 is not allowed"):
        first.replace(max_steps=0)
    with pytest.raises(ParameterError, match="^max_step = 3 is not a known.* key is max_steps"):
        first.replace(max_step=3)
    with pytest.raises(ValidationError, match="frozen"):
        first.max_steps = 2


def test_direct_construction_is_validated():
    with pytest.raises(ParameterError, match="^max_steps = 0 is not allowed"):
        PhaseParameters(max_steps=0, tolerance=0.1)


class ShapeParameters(Chosen):
    chosen_by = "kind"
    table = {"circle": f"{__name__}:CircleParameters"}  # noqa: RUF012

    kind: str
    seed: int = Field(default=0, ge=0)


class CircleParameters(ShapeParameters):
    radius: float = Field(gt=0.0)


class SquareParameters(ShapeParameters):
    sides: Distinct[Annotated[int, Field(ge=1)]]


class DrawingParameters(Parameters):
    shape: ShapeParameters
    frame: ShapeParameters | None = None


def test_a_key_chooses_the_class(read, monkeypatch):
    circle = CircleParameters(kind="circle", radius=1)
    assert ShapeParameters(kind="circle", radius=1) == circle
    assert read("kind: circle, radius: 1", schema=ShapeParameters) == circle
    text = "shape: {kind: circle, radius: 1}, frame: null"
    drawing = read(text, schema=DrawingParameters)
    assert drawing == DrawingParameters(shape=circle)
    plain = {"shape": {"kind": "circle", "seed": 0, "radius": 1.0}, "frame": None}
    assert drawing.model_dump() == plain
    assert digest(drawing) == digest(plain)
    assert drawing.replace(shape=circle.replace(radius=2)).shape.replace(radius=1) == circle
    assert pickle.loads(pickle.dumps(drawing)) == copy.deepcopy(drawing) == drawing

    with pytest.raises(ParameterError, match=r"shape\.kind = 'square' .* is one of 'circle';"):
        read("shape: {kind: square, sides: [1]}", schema=DrawingParameters)
    monkeypatch.setitem(ShapeParameters.table, "square", f"{__name__}:SquareParameters")
    drawing = read("shape: {kind: square, sides: [1]}", schema=DrawingParameters)
    assert drawing.shape == SquareParameters(kind="square", sides=(1,))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shape: {radius: 1}", ["shape.kind is missing; allowed is one of 'circle'"]),
        ("shape: {kind: '???'}", ["shape.kind is missing"]),
        ("shape: {kid: circle}", ["shape.kid = 'circle' is not", f"key is {RUN}.free.shape.kind "]),
        ("shape: {kind: cirkle}", ["kind = 'cirkle'", "'circle'; the closest is 'circle'"]),
        ("shape: {kind: [circle]}", ["shape.kind = ['circle'] is not allowed"]),
        ("shape: {kind: circle}", ["shape.radius is missing; allowed is float, above 0.0"]),
        ("shape: {kind: circle, radius: 0}", ["shape.radius = 0", "above 0.0"]),
        ("shape: {kind: circle, sides: [1]}", ["shape.sides = [1] is", "setting; valid: kind, "]),
        ("shape: 3", ["shape = 3 is not a section", "kind"]),
        ("", ["shape is missing; allowed is a section with kind"]),
        ("shape: {kind: circle, radius: 1}, frame: {}", ["frame.kind is missing"]),
    ],
)
def test_refusal_of_what_a_key_chooses(read, text, words):
    with pytest.raises(ParameterError) as caught:
        read(text, schema=DrawingParameters)
    for word in [f"params.yaml: {RUN}.free.", *words]:
        assert word in str(caught.value)


def test_digest():
    first = PhaseParameters(max_steps=1, tolerance=0.1)
    assert digest(first) == digest(PhaseParameters(max_steps=1, tolerance=0.1))
    assert digest(first) != digest(PhaseParameters(max_steps=2, tolerance=0.1))
    assert digest({"b": 1, "a": (1, 2)}) == digest({"a": [1, 2], "b": 1})
    assert digest(1, 2) != digest([1, 2])
    assert digest("a") == "0eb5b8d6f81bc677da8a08567cc4fa9a06a57e9ec8da85ed73a7f62727996002"


def test_does_not_import_torch():
    code = "import sys, implicit_models.parameters; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int | None, "int | null"),
        (Literal["a", None], "str | null, one of 'a', null"),
        (tuple[float, ...], "list[float]"),
        (tuple[int, str], "list[int, str]"),
        (dict[str, float] | None, "a section | null"),
        (dict, "a section"),
    ],
)
def test_types_are_told_as_yaml_has_them(hint, words):
    assert in_words(hint) == words
