"""What docstrings begin with, beyond what ruff's D401 can see: it takes these words as they are."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNUSUAL = {"Give", "Have", "Let", "Say", "Tell"}  # numpy's convention writes "Return", "Set" ...
NO_VERBS = {"A", "All", "An", "How", "The", "What", "Where", "Whether", "Which"}


@pytest.mark.parametrize(
    "folder", ["implicit_models", "stages", "pipelines", "benchmarks", "scripts", "tests"]
)
def test_docstrings_of_functions_begin_with_a_usual_verb(folder: str) -> None:
    number, wrong = 0, []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if text := ast.get_docstring(node):
                number += 1
                is_property = any("property" in ast.unparse(d) for d in node.decorator_list)
                may_be_noun = folder == "tests" or is_property
                word = text.split()[0].rstrip(",.:;")
                if word in UNUSUAL or (word in NO_VERBS and not may_be_noun):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {word}")
    assert number
    assert not wrong, "\n".join(["these docstrings begin otherwise than with 'Return' ...", *wrong])
