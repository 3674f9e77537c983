"""The strict reader: what it accepts, and how it refuses."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from implicit_models.parameters import (
    ParameterError,
    digest,
    read_names,
    read_section,
    setting,
    validate,
)


@dataclass(frozen=True, kw_only=True)
class LengthsParameters:
    start: int = setting(minimum=1)
    end: int = setting(minimum=1)

    def __post_init__(self):
        validate(self)
        if self.end < self.start:
            raise ParameterError(f"end = {self.end} is below start = {self.start}")


@dataclass(frozen=True, kw_only=True)
class PhaseParameters:
    family: str = setting(default="mamba2", choices=("mamba2", "lstm"))
    max_steps: int = setting(minimum=1)
    tolerance: float = setting(above=0.0, below=1.0)
    implicit: bool = setting(default=True)
    num_heads: int | None = setting(default=None, minimum=1)
    tolerances: tuple[float, ...] = setting(default=(0.1,), above=0.0)
    lengths: LengthsParameters | None = setting(default=None)

    def __post_init__(self):
        validate(self)


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
    with pytest.raises(ParameterError, match="seed = 3 is not a table"):
        read_names(f"{RUN}.seed", tmp_path / "params.yaml")


def test_reads_tables_and_lists(read):
    text = "max_steps: 1, tolerances: [1, 2]"
    plain = {"max_steps": 1, "tolerances": [1, 2]}
    assert read(text, schema=dict[str, Any]) == plain
    assert read(text, key=f"{RUN}.free.tolerances", schema=tuple[int, ...]) == (1, 2)
    assert digest(read(text, schema=dict[str, Any])) == digest(plain)
    with pytest.raises(ParameterError, match="seed = 3 is not allowed; allowed is str"):
        read("", key=f"{RUN}.seed", schema=str)


def test_resolves_interpolation(read):
    assert read(f"max_steps: '${{{RUN}.seed}}', tolerance: 0.5").max_steps == 3


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
        ("max_steps: 1, tolerance: 1.0", ["tolerance = 1.0", "above 0.0, below 1.0"]),
        ("max_steps: 1, tolerance: .nan", ["tolerance = nan", "above 0.0"]),
        ("max_steps: 1, tolerance: .1, implicit: 1", ["implicit = 1", "bool"]),
        ("max_steps: 1, tolerance: .1, num_heads: 0", ["num_heads = 0", "at least 1"]),
        ("max_steps: 1, tolerance: .1, tolerances: [1, 0]", ["tolerances = (1.0, 0.0)", "above"]),
        ("max_steps: 1, tolerance: .1, tolerances: 1", ["tolerances = 1", "tuple[float, ...]"]),
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
    with pytest.raises(ParameterError, match="no such file; run from the root"):
        read_section("runs", PhaseParameters, tmp_path / "params.yaml")
    broken = tmp_path / "broken.yaml"
    for text in ("a: [1", "a: 1\na: 2\n", "a: ${nothing}\n"):
        broken.write_text(text)
        with pytest.raises(ParameterError, match="broken.yaml: cannot be read as YAML"):
            read_section("a", PhaseParameters, broken)
    broken.write_text("")
    with pytest.raises(ParameterError, match="has no keys"):
        read_section("a", PhaseParameters, broken)


def test_direct_construction_is_validated():
    with pytest.raises(ParameterError, match="^max_steps = 0 is not allowed"):
        PhaseParameters(max_steps=0, tolerance=0.1)


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
