"""Write docs/troubleshooting.md: messages with which something is refused, from the code.

    python scripts/message_reference.py

`tests/test_message_reference.py` fails where the page is not what this writes.
"""

import argparse
import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from implicit_models.files import write_whole

Named = TypeVar("Named")

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
    "implicit_models": "Files, devices, costs, scores and report",
    "stages": "Stages and the check",
    "pipelines/cluster": "Clusters",
    "pipelines": "Flows, sweeps and commands",
    "scripts": "Scripts: make install, make figures, make dashboards and tables of results",
    "benchmarks": "Benchmarks",
}
_FILLED = "\0"  # around what is filled in
_OWN_WORD = re.compile(r"\b[a-z]{2,}|\bPREFECT_API_URL")  # what is filled in is in capitals
_NO_NAMES = {"__name__", "self", "str", "type", "repr", "each"}
_TELLERS = {"fail", "print", "SystemExit", "sys.exit", "parser.error", "found.add"}
_TELLERS |= {"FloatingPointError", "OSError", "TimeoutError"}
_MARK = re.compile(r"^(bootstrap: )?(error: |failed: )")  # without one print tells no error
_BEFORE = """# Messages and what to do

Messages with which a command, a stage or a script ends, or refuses something, by the part that says
it. A message names the key or the file, what was found, what is allowed,
and, where that does not tell it, what to do. Look for its words, without what was found: that
stands here in CAPITALS; search the page for three words of it. What a library says (of YAML, a
tokenizer, a server) is the library's.
`scripts/message_reference.py` writes this page.

## First

| what you see | do |
|---|---|
"""
_FIRST = {
    "`error:` and a line with a key": "correct it in its preset; `implicit-models check` tells all",
    "`missing:` and a line with a text, tasks or a tokenizer": (
        "put the files there, or name another folder ([texts](presets.md#a-text-of-your-own))"
    ),
    "`params.yaml has no entry`": (
        "another preset was composed last; `implicit-models run PRESET` brings this one back"
    ),
    "`has no model yet`": "`implicit-models run PRESET` trains it",
    "a stage fails under `dvc repro`": "run it by hand, `python -m STAGE NAME`: it says more",
    "`the disk is full: make room`, `could not be written`": (
        "`dvc gc --workspace --dry` lists what can go"
    ),
    "`its file system has no flock`": "another disk, or [one with locks](slurm.md)",
    "a training was interrupted": "the same command goes on from its last checkpoint",
    "`is this training with other code`, `is this training with a global batch`": (
        "put back what differs; or `IMPLICIT_MODELS_CHANGED_CODE=continue` "
        "(`IMPLICIT_MODELS_CHANGED_BATCH=continue`) goes on, and `=restart` begins anew "
        "([checkpoints](pretraining.md#checkpoints-interruptions))"
    ),
    "a training is much slower than before": "[other work](benchmarks.md#beside-other-work)",
    "metrics are missing in MLflow": "`python -m implicit_models.tracking.sync`",
    "a flow ends with a status": "see [exit status](orchestration.md#exit-status)",
    "`FloatingPointError: ... steps in a row were left out`": (
        "the training diverges: lower `optimisation.learning_rate` or `clip_norm`; the "
        "weights before are in the last checkpoint"
    ),
    "`torch.OutOfMemoryError`": (
        "`IMPLICIT_MODELS_MICRO_BATCH` and `IMPLICIT_MODELS_CHECKPOINTING` "
        "([several processes](environment.md#several-processes)); `implicit-models plan` tells "
        "what fits"
    ),
    "`cannot be read as YAML`, `line LINE, column COLUMN`": (
        "mend the line that it names; YAML is indented with spaces"
    ),
    "`conf/preset/NAME.yaml:` and what Hydra says": (
        "mend that preset: a value in `${}` is [another key's](presets.md#one-value-one-place)"
    ),
    "`cannot be composed`": "quote the setting for the shell and for Hydra: `'KEY=\"a: b\"'`",
    "`its first line must be # @package _global_`": "put that line above all comments",
    "`is in no list of checksums`, `is truncated or not a .npy file`, `its split says`": (
        "`dvc repro` of the stage that the line names next makes it anew"
    ),
    "`is missing; a model is config.json and model.safetensors`": (
        "name a model's folder, `models/ENTRY/final`; `dvc repro` makes it"
    ),
    "`in the source; ours have`, `weights that ours have not`, `ours cannot have`": (
        "no key changes that: name another model as the source"
    ),
    "`what they cost does not compare`": "name a run that learns from the baseline's data",
    "`was tokenised for another model`": (
        "prepare the text with the model's own tokenizer, or name the model that has the text's"
    ),
    "`is empty; a file has at least one story`": (
        "fetch the file again, or leave its number out of `tasks`"
    ),
    "`there is no C compiler`, `makes no kernels that run here`": (
        "install one, or name it in `CC`; without any the [kernels](kernels.md#on-a-cpu) in "
        "PyTorch run"
    ),
    "`the weights in`, `no model can be read from`, `cannot be read as a model`": (
        "`dvc checkout --force` brings back a model of `models/`; one from elsewhere is fetched "
        "again, with its weights in the format safetensors"
    ),
    "`the document is empty`, `is null, which is not text`, `tokenised at once`": (
        "mend the document; `unusable_documents: skip` leaves such documents out"
    ),
    "`are not in the DVC remote`": "`dvc push` on the machine that has them",
    "`has not taken`, `has not answered`, `could not be exchanged`, `counts as lost`, `was "
    "deleted`, `has sent no result`, `could not be put into the DVC remote`": (
        "a machine, a network or a server has failed: the stage is tried again by itself; the same "
        "command goes on once the flow has ended"
    ),
}
"""What is seen, and what to do."""


def main() -> None:
    """Write the page."""
    argparse.ArgumentParser(description="Write docs/troubleshooting.md.").parse_args()
    write_whole(PAGE, reference())


def reference() -> str:
    """Return the page."""
    modules = {
        path.relative_to(ROOT): ast.parse(path.read_text())
        for folder in ("implicit_models", "stages", "pipelines", "scripts", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    errors = _errors(modules.values())
    names = {path: ".".join(path.with_suffix("").parts) for path in modules}
    constants = {names[path]: _own(tree) for path, tree in modules.items()}
    functions = {
        names[path]: {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
        for path, tree in modules.items()
    }
    found: dict[str, dict[str, None]] = {title: {} for title in _FOLDERS.values()}
    for path, tree in modules.items():
        folder = max((each for each in _FOLDERS if path.is_relative_to(each)), key=len)
        own = _own(tree) | _imported(tree, constants)
        file = _File(tree, own, _imported(tree, functions).values())
        found[_FOLDERS[folder]] |= dict.fromkeys(file.messages(errors))
    sections = [
        "\n".join([f"## {title}", "", *(f"- `` {each} ``" for each in messages), ""])
        for title, messages in found.items()
        if messages
    ]
    rows = "".join(f"| {seen} | {do} |\n" for seen, do in _FIRST.items())
    return "\n".join([_BEFORE + rows, *sections])


def _errors(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of the classes of errors that are ours: they are told in a line."""
    return {"error"} | {  # a class that a function is handed
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error")
    }


def _own(tree: ast.Module) -> dict[str, str]:
    """Return the texts that a file gives names to."""
    assigned = [
        (target, node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    ]
    several = [
        pair
        for target, value in assigned
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        for pair in zip(target.elts, value.elts, strict=True)
    ]
    return {
        target.id: value.value
        for target, value in [*assigned, *several]
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant)
        if isinstance(value.value, str)
    }


def _imported(tree: ast.Module, others: Mapping[str, Mapping[str, Named]]) -> dict[str, Named]:
    """Return what a file has of others."""
    return {
        alias.asname or alias.name: others[node.module][alias.name]
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module in others
        for alias in node.names
        if alias.name in others[node.module]
    }


class _File:
    """A file of code: its messages, with the words that its constants and functions put in."""

    def __init__(
        self,
        tree: ast.Module,
        constants: Mapping[str, str],
        imported: Iterable[ast.FunctionDef] = (),
    ) -> None:
        self._tree = tree
        self._constants = constants
        self._open: set[int] = set()
        own = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self._functions = [*own, *imported]

    def messages(self, errors: Collection[str]) -> Iterator[str]:
        """Yield the messages from top to bottom."""
        named = [[error] for error in errors if error.endswith("Error")]  # of a module
        around = {id(node): function for function in self._functions for node in ast.walk(function)}
        calls = [node for node in ast.walk(self._tree) if isinstance(node, ast.Call) and node.args]
        for node in sorted(calls, key=lambda each: each.lineno):
            told_by = ast.unparse(node.func)
            is_told = told_by in {*_TELLERS, *errors} or told_by.split(".")[1:] in named
            if is_told and not any(ast.unparse(each) == "'warning'" for each in node.args):
                for text in self._texts(node.args[0], around.get(id(node))):
                    said = _MARK.sub("", text)
                    is_error = told_by != "print" or said != text
                    if is_error and len(_OWN_WORD.findall(said)) > 1:
                        yield _plain(said)

    def _texts(self, node: ast.expr, function: ast.FunctionDef | None) -> list[str]:
        """Return the texts that an expression may be; none where it has no words in this file."""
        if id(node) in self._open:  # a name that is made of itself
            return []
        self._open.add(id(node))
        try:
            return self._words(node, function)
        finally:
            self._open.remove(id(node))

    def _words(self, node: ast.expr, function: ast.FunctionDef | None) -> list[str]:
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return ["".join(self._part(each, function) for each in parts)]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                sides = [left, right]
                is_text = any(self._texts(each, function) for each in sides)
                return ["".join(self._part(each, function) for each in sides)] if is_text else []
            case ast.IfExp(body=body, orelse=other):
                texts = [self._texts(body, function), self._texts(other, function)]
                return [*texts[0], *texts[1]] if all(texts) else []
            case ast.Name(id=name) if name in self._constants:
                return [self._constants[name]]
            case ast.Name(id=name) if function is not None:
                values = [
                    each.value
                    for each in ast.walk(function)
                    if (isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name)
                    or (isinstance(each, ast.NamedExpr) and each.target.id == name)
                ]
                return [text for each in values for text in self._texts(each, function)]
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(ast.Name("self"), name)):
                return [
                    text
                    for called in self._functions
                    if called.name == name
                    for each in ast.walk(called)
                    if isinstance(each, ast.Return) and each.value
                    for text in self._texts(each.value, called)
                ]
        return []

    def _part(self, node: ast.expr, function: ast.FunctionDef | None) -> str:
        """Return a part of a message: its words, or a name for what is filled in."""
        node = node.value if isinstance(node, ast.FormattedValue) else node
        texts = [text for text in self._texts(node, function) if text]
        if len(texts) == 1 or (texts and isinstance(node, ast.IfExp)):
            return texts[0]
        return f"{_FILLED}{_name(node)}{_FILLED}"


def _name(node: ast.expr) -> str:
    """Return what is filled in, by its first name that is no function's, in capitals."""
    called = {id(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
    names = [
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute | ast.Name) and id(each) not in called
    ]
    names = [each.strip("_") for each in names if each not in _NO_NAMES]
    return names[0].upper() if names else "SOMETHING"


def _plain(text: str) -> str:
    """Return a message in one line, with a space between two that are filled in."""
    return " ".join(text.replace(_FILLED * 2, " ").replace(_FILLED, "").split())


if __name__ == "__main__":
    main()
