"""docs/environment.md names the variables that the code reads, and no other of ours."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.repositories import ROOT

PAGE = (ROOT / "docs" / "environment.md").read_text()
FOLDERS = ("implicit_models", "stages", "pipelines", "scripts")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
CODE = {path: path.read_text() for path in FILES}


def _constants(tree: ast.Module) -> dict[str, str]:
    """The texts that a module gives names to."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }


def _asked_for(tree: ast.AST) -> Iterator[ast.expr]:
    """What `os.environ.get`, `os.getenv` and `os.environ[...]` are asked for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            if ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
                yield node.args[0]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            yield from [node.slice] if ast.unparse(node.value) == "os.environ" else []


def read_variables() -> set[str]:
    """The variables whose names stand in the code where it reads them."""
    found = set()
    for source in CODE.values():
        tree = ast.parse(source)
        constants = _constants(tree)
        for name in _asked_for(tree):
            if isinstance(name, ast.Constant):
                found.add(name.value)
            elif isinstance(name, ast.Name) and name.id in constants:
                found.add(constants[name.id])
    return found


def documented() -> set[str]:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def _named(files: dict[Path, str]) -> set[str]:
    return {name for text in files.values() for name in re.findall(r"IMPLICIT_MODELS_\w+", text)}


def test_the_variables_that_are_read_are_on_the_page():
    found = read_variables()
    assert {"CC", "MLFLOW_TRACKING_URI", "IMPLICIT_MODELS_CUDA_GRAPHS", "DVC_STAGE"} <= found
    assert found - documented() == set()


def test_our_variables_are_on_the_page_and_those_of_the_page_are_in_the_code():
    ours = {name for name in documented() if name.startswith("IMPLICIT_MODELS_")}
    assert ours == _named(CODE)
    written = "\n".join([*CODE.values(), (ROOT / "Makefile").read_text()])
    assert {name for name in documented() if name not in written} == set()
