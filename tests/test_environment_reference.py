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


def _own(tree: ast.Module) -> dict[str, str]:
    """The texts that a module gives names to."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }


def _constants(tree: ast.Module) -> dict[str, str]:
    """The texts that have names in a module: its own, and those that it imports of ours."""
    found = _own(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            theirs = OWN.get(ROOT / f"{node.module.replace('.', '/')}.py", {})
            found |= {a.asname or a.name: theirs[a.name] for a in node.names if a.name in theirs}
    return found


OWN = {path: _own(ast.parse(source)) for path, source in CODE.items()}


def _asked_for(tree: ast.AST) -> Iterator[ast.expr]:
    """What environments are asked for: by `get`, `[...]` and `in`, as `os.environ` or handed on."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=asked, attr="get"), args=[name, *_]):
                pass
            case ast.Subscript(value=asked, slice=name, ctx=ast.Load()):
                pass
            case ast.Compare(left=name, ops=[ast.In() | ast.NotIn()], comparators=[asked]):
                pass
            case _:
                continue
        if ast.unparse(asked) in ("os.environ", "environment"):
            yield name


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
    return {name for name in found if re.fullmatch("[A-Z_]+", str(name))}


def documented() -> set[str]:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def _named(files: dict[Path, str]) -> set[str]:
    return {name for text in files.values() for name in re.findall(r"IMPLICIT_MODELS_\w+", text)}


def test_the_variables_that_are_read_are_on_the_page():
    found = read_variables()
    assert {"CC", "MLFLOW_TRACKING_URI", "IMPLICIT_MODELS_CUDA_GRAPHS", "DVC_STAGE"} <= found
    assert {"IMPLICIT_MODELS_NODE", "OMP_WAIT_POLICY", "IMPLICIT_MODELS_MICRO_BATCH"} <= found
    assert found - documented() == set()


def test_our_variables_are_on_the_page_and_those_of_the_page_are_in_the_code():
    ours = {name for name in documented() if name.startswith("IMPLICIT_MODELS_")}
    assert ours == _named(CODE)
    written = "\n".join([*CODE.values(), (ROOT / "Makefile").read_text()])
    assert {name for name in documented() if not re.search(rf"\b{name}\b", written)} == set()
