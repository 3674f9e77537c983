"""Digests of code that stay the same where an edit changes nothing that is computed.

Of Python its syntax tree counts, without docstrings; of C its tokens. So comments, docstrings and
layout do not. They are compared file by file, by which an edited file can be named.
"""

import ast
import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).parent

#: Paths in the library: neither a model's weights nor its scores depend on them.
NOT_COMPUTING = (
    "__init__.py",
    "bars.py",
    "display.py",
    "checksums.py",
    "code_digest.py",
    "code_imports.py",
    "command.py",
    "cost/devices.py",
    "equilibrium/__init__.py",
    "files.py",
    "lazy_names.py",
    "outside_code.py",
    "parameters",
    "families/huggingface/positions.py",
    "families/table.py",
    "planning",
    "problems/table.py",
    "reporting",
    "threads.py",
    "tracking",
)

# Parsing all of the library takes a second, so what it gave is kept where Python keeps bytecode.
_CACHE = LIBRARY / "__pycache__" / f"code_digests.{sys.implementation.cache_tag}.json"
_MAX_CACHED = 5000  # digests


_STRING = r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'"
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_OPERATORS = r"<<=|>>=|\.\.\.|\+\+|--|->|<<|>>|&&|\|\||##|[-+*/%&|^=!<>]="
_TOKEN = re.compile(rf"(\s*)({_STRING}|\.?\d(?:[eEpP][+-]|[\w.])*|\w+|{_OPERATORS}|\S)")


def code_digests(folder: Path = LIBRARY, without: Collection[str] = ()) -> dict[str, str]:
    """Return the digest of each source file in a folder, by its path in there.

    Parameters
    ----------
    without
        Paths in the folder, of files and of folders, that are left out.
    """
    files = sorted([*folder.rglob("[!.]*.py"), *folder.rglob("[!.]*.c")])
    paths = (file.relative_to(folder) for file in files)
    left_out = {*without}
    return file_digests(
        folder,
        (
            path.as_posix()
            for path in paths
            if not left_out & {path.as_posix(), *(parent.as_posix() for parent in path.parents)}
        ),
    )


def file_digests(folder: Path, paths: Iterable[str]) -> dict[str, str]:
    """Return the digest of some source files, by their paths in a folder."""
    cached = _read_cache()
    added, digests = {}, {}
    for path in paths:
        file = folder / path
        content = file.read_bytes()
        key = hashlib.sha256(file.suffix.encode() + content).hexdigest()
        if key not in cached:
            added[key] = cached[key] = _digest(content, file.suffix)
        digests[path] = cached[key]
    if added:
        _write_cache(cached if len(cached) <= _MAX_CACHED else added)
    return digests


def not_of_problem(package: str, *parts: str) -> list[str]:
    """Return the paths in the library that say nothing of models of one kind of problem.

    Parameters
    ----------
    package
        Of the kind, as `problems.table.KINDS` has it: its folder may be called otherwise.
    parts
        Paths in its folder that do not count either.
    """
    own = package.removeprefix(f"{LIBRARY.name}.").replace(".", "/")
    others = [kind for kind in kinds_in_library() if kind != own]
    return [*others, *(f"{own}/{part}" for part in ("checks.py", "report", *parts))]


def kinds_in_library() -> list[str]:
    """Return the paths in the library that hold a kind of problem each."""
    files = sorted((LIBRARY / "problems").glob("*/parameters.py"))
    return [file.parent.relative_to(LIBRARY).as_posix() for file in files]


def only_of_scores() -> list[str]:
    """Return the paths in the library that scores depend on, and no weight."""
    readers = sorted((LIBRARY / "families").rglob("*reader.py"))
    return ["evaluation", *(file.relative_to(LIBRARY).as_posix() for file in readers)]


def python_tokens(text: str) -> Any:
    """Return a module's syntax tree as nested lists; the same in all versions of Python we run."""
    return _plain(ast.parse(text))


def c_tokens(text: str) -> list[str]:
    """Return the tokens of a C file; a directive, in which white space has a meaning, is one."""
    text = text.replace("\\\n", "")
    tokens: list[str] = []
    for line in _COMMENT.sub(lambda found: found[1] or " ", text).splitlines():
        found = [(bool(space), token) for space, token in _TOKEN.findall(line)]
        if found and found[0][1] == "#":
            tokens.append("".join(" " * space + token for space, token in found).strip())
        else:
            tokens += [token for _, token in found]
    return tokens


def _plain(node: Any) -> Any:
    # Not ast.dump, whose text is another one from one version of Python to the next.
    if isinstance(node, ast.JoinedStr):  # in which Python 3.12 has empty pieces
        pieces = [each for each in node.values if getattr(each, "value", None) != ""]
        return ["JoinedStr", *map(_plain, pieces)]
    if isinstance(node, list):
        return [_plain(each) for each in node if not _is_text(each)]
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if name != "kind")
        filled = [[name, _plain(value)] for name, value in fields if value not in (None, [])]
        return [type(node).__name__, *filled]
    return repr(node)


def _is_text(node: Any) -> bool:
    """Return whether it is a statement that is a string alone: a docstring, wherever it stands."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _digest(content: bytes, suffix: str) -> str:
    tokens: Any
    try:
        tokens = (python_tokens if suffix == ".py" else c_tokens)(content.decode())
    except (SyntaxError, ValueError):  # half written: as it is
        tokens = content.hex()
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def _own_digest() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _read_cache() -> dict[str, str]:
    try:
        cache = json.loads(_CACHE.read_text())
        return cache["digests"] if cache["of"] == _own_digest() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_cache(digests: dict[str, str]) -> None:
    partial = _CACHE.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # as of bytecode: a library that nobody may write to works
        _CACHE.parent.mkdir(exist_ok=True)
        partial.write_text(json.dumps({"of": _own_digest(), "digests": digests}))
        partial.replace(_CACHE)
