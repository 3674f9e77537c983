"""Which files of our code a module needs: those that it imports, and those that these import."""

import ast
import functools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Where statements stand in others; expressions, which are most of a tree, hold none.
_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")


class UnreadableCodeError(ValueError):
    """A file that is needed and cannot be read as Python, such as one that is half written."""


def needed_files(roots: Iterable[str], without: Collection[str] = ()) -> list[str]:
    """Return the files of some modules, of what they import, and so on, C sources beside them.

    Imports inside functions count, those for type checkers alone do not. Modules that are found by
    a name in a table are to be given as roots.

    Parameters
    ----------
    roots
        Modules by their full names.
    without
        Paths that do not count, nor what they import; of files, or the beginnings of such.

    Returns
    -------
    list[str]
        Paths from the repository's root, sorted.
    """
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        path = _source_file(module)
        if path is None:
            raise ModuleNotFoundError(f"{module} is no module of ours")
        if module not in found and not path.startswith(tuple(without)):
            found[module] = path
            waiting += _imports(module)
    folders = {(ROOT / path).parent for path in found.values()}
    beside = {
        file.relative_to(ROOT).as_posix() for each in folders for file in each.glob("[!.]*.c")
    }
    return sorted({*found.values(), *beside})


def submodules(package: str) -> list[str]:
    """Return the modules of a package, by their full names."""
    folder = ROOT.joinpath(*package.split("."))
    files = (file.relative_to(ROOT).with_suffix("") for file in folder.rglob("[!.]*.py"))
    return sorted(".".join(file.parts).removesuffix(".__init__") for file in files)


@functools.cache
def _source_file(module: str) -> str | None:
    """Return the file of a module, or of a package; None where there is none."""
    path = ROOT.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file.relative_to(ROOT).as_posix()
    return None


@functools.cache
def _imports(module: str) -> list[str]:
    parents = [module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)]
    file = _source_file(module)
    assert file is not None
    try:
        tree = ast.parse((ROOT / file).read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UnreadableCodeError(f"{file} is no Python: {error}; correct it") from None
    found = [*parents, *_imported(tree)]
    return [each for each in found if _source_file(each)]  # but folders alone


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _is_ours(alias.name))
    elif isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
        yield node.module
        for alias in node.names:
            if _source_file(f"{node.module}.{alias.name}"):
                yield f"{node.module}.{alias.name}"
    for block in _BLOCKS:
        if block == "body" and isinstance(node, ast.If) and _is_for_type_checkers(node.test):
            continue
        for child in getattr(node, block, ()):
            yield from _imported(child)


def _is_ours(module: str) -> bool:
    return (ROOT / module.split(".")[0]).is_dir()


def _is_for_type_checkers(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
