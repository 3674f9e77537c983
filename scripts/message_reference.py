"""Write docs/troubleshooting.md: messages with which something is refused, from the code.

    python scripts/message_reference.py

`tests/test_message_reference.py` fails where the page is not what this writes.
"""

import argparse
import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
_FOLDERS = {
    "implicit_models/parameters": "Parameters: params.yaml, presets, keys and values",
    "implicit_models/training": "Training",
    "implicit_models/families": "Models and their families",
    "implicit_models/language_models": "Models and their files",
    "implicit_models/problems/word_problem": "Word problems",
    "implicit_models/problems/formal_language": "Formal languages",
    "implicit_models/problems/catbabi": "Stories",
    "implicit_models/problems/text": "Text",
    "implicit_models/problems/downstream": "Downstream tasks",
    "implicit_models": "Files, devices, tracking and report",
    "stages": "Stages and the check",
    "pipelines/cluster": "Clusters",
    "pipelines": "Flows, sweeps and commands",
}
# Of a message, not of what is filled in, which is in capitals and has spaces for underscores.
_OWN_WORD = re.compile(r"[a-z]{2,}|[A-Z]+\\_\w+")
_NO_NAMES = {"__name__", "self", "str", "type", "repr", "each"}
_BEFORE = """# Messages and what to do

Messages with which a command or a stage ends, or refuses something, by the part that says it: those
of the project's own errors, as far as their words stand in one place of the code. CAPITALS stand
for what was found. `scripts/message_reference.py` writes this page. A message names the key or the
file, what was found, what is allowed, and where there is one the way out.

## First

| what you see | do |
|---|---|
"""
_FIRST = {
    "`error:` and a line with a key": "correct it in its preset; `implicit-models check` tells all",
    "a stage fails under `dvc repro`": "run it by hand, `python -m STAGE NAME`: it says more",
    "`the disk is full: make room`": "`dvc gc --workspace --dry` lists what can go",
    "a training was interrupted": "the same command goes on from its last checkpoint",
    "a training is much slower than before": "[other work](benchmarks.md#beside-other-work)",
    "metrics are missing in MLflow": "`python -m implicit_models.tracking.sync`",
    "a flow ends with a status": "see [orchestration.md](orchestration.md#exit-status)",
    "`FloatingPointError: ... steps in a row were left out`": (
        "the training diverges: lower `optimisation.learning_rate` or `clip_norm`; the "
        "weights before are in the last checkpoint"
    ),
    "`torch.OutOfMemoryError`": (
        "`IMPLICIT_MODELS_MICRO_BATCH` and `IMPLICIT_MODELS_CHECKPOINTING` "
        "([environment.md](environment.md#several-processes)); `implicit-models plan` tells "
        "what fits"
    ),
    "`cannot be read as YAML`": "mend the line that it names; YAML is indented with spaces",
    "`cannot be composed`": "quote the setting for the shell and for Hydra: `'KEY=\"a: b\"'`",
    "`its first line must be # @package _global_`": "put that line above all comments",
    "`the content has changed: its SHA-256 is ...`": (
        "`dvc checkout` brings back what a stage wrote; `dvc repro --force` of that stage "
        "makes it anew"
    ),
    "`is in no list of checksums beside it`": "`dvc repro --force` of the stage that wrote it",
    "`is missing; a model is config.json and model.safetensors`": (
        "name a model's folder, `models/ENTRY/final`; `dvc repro` makes it"
    ),
    "`the model is implicit already`": "train it on as it is, or name its explicit source",
    "a tokenizer with ids beyond its number of tokens": "number its ids from 0 without gaps",
    "no item of a task": "put `TASK.jsonl` there, or leave the task out of `names`",
    "outputs that are not in the DVC remote": "`dvc push` on the machine that has them",
}
"""What is seen, and what to do."""


def main() -> None:
    """Write the page."""
    argparse.ArgumentParser(description="Write docs/troubleshooting.md.").parse_args()
    PAGE.write_text(reference())


def reference() -> str:
    """Return the page."""
    modules = {
        path: ast.parse(path.read_text())
        for folder in ("implicit_models", "stages", "pipelines")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    errors = _errors(modules.values())
    found: dict[str, dict[str, None]] = {title: {} for title in _FOLDERS.values()}
    for path, tree in modules.items():
        place = path.relative_to(ROOT).as_posix()
        folder = max((each for each in _FOLDERS if place.startswith(f"{each}/")), key=len)
        found[_FOLDERS[folder]] |= dict.fromkeys(_messages(tree, errors))
    sections = [
        "\n".join([f"## {title}", "", *(f"- {each}" for each in messages), ""])
        for title, messages in found.items()
        if messages
    ]
    rows = "".join(f"| {seen} | {do} |\n" for seen, do in _FIRST.items())
    return "\n".join([_BEFORE + rows, *sections])


def _errors(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of the classes of errors that are ours: they are told in a line."""
    return {
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error")
    }


def _messages(tree: ast.Module, errors: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            text = _text(node.args[0]) if node.func.id in errors else None
            if text is not None and len(_OWN_WORD.findall(text)) > 1:
                yield re.sub(r" +([,;.:)'])", r"\1", re.sub(r" {2,}", " ", text)).strip()


def _text(node: ast.expr) -> str | None:
    """Return the words of a message, with names in the place of what is filled in."""
    if isinstance(node, ast.Constant):
        return _plain(node.value) if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _plain(str(each.value)) if isinstance(each, ast.Constant) else f" {_name(each.value)} "
            for each in node.values
            if isinstance(each, ast.Constant | ast.FormattedValue)
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_text(node.left), _text(node.right)]
        return "".join(part or " MORE " for part in parts) if any(parts) else None
    return None


def _name(node: ast.expr) -> str:
    """Return what is filled in, by its first name that is no function's, in capitals."""
    called = {id(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
    names = [
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute | ast.Name) and id(each) not in called
    ]
    names = [each.strip("_") for each in names if each not in _NO_NAMES]
    return names[0].upper().replace("_", " ") if names else "SOMETHING"


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return re.sub(r"([\\*_<>\[\]|])", r"\\\1", " ".join(text.split("\n")))


if __name__ == "__main__":
    main()
