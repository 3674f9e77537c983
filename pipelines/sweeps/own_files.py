"""A user's own text, tasks and models, which git has not got: clones read them through links."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from implicit_models.parameters.dotted import dotted
from pipelines.git import git
from pipelines.running import StageFailedError

#: Keys of entries, wherever they stand, whose values are files and folders, or names on the hub.
NAMING = ("source", "tokenizer", "model")
_FILE_MODES = {b"100644", b"100755"}  # of git; links and repositories within have others
#: What stages write; in the last two a user may have other folders beside those of entries.
WRITTEN = ("checkpoints", "code", "results", "data", "models")


def link_own_files(root: Path, clone: Path, parameters: Mapping[str, Any]) -> None:
    """Link into a clone what entries name and only the repository has; git there ignores it."""
    paths = own_files(root, parameters)
    for path in paths:
        _link(root / path, clone / path)
    exclude = clone / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    known = exclude.read_text().splitlines() if exclude.exists() else []
    lines = dict.fromkeys([*known, *map(_pattern, paths)])
    exclude.write_text("".join(f"{line}\n" for line in lines))


def own_files(root: Path, parameters: Mapping[str, Any]) -> list[Path]:
    """Return the files and folders in a repository that entries name, but for what stages write.

    Returns
    -------
    list
        Of paths from the repository, a folder before what is in it.
    """
    tables = [table for table in parameters.values() if isinstance(table, Mapping)]
    entries = {str(name) for table in tables for name in table}
    paths = {Path(os.path.normpath(value)) for _, value in named(parameters)}
    own = [path for path in paths if _may_be_own(path, entries) and (root / path).exists()]
    return sorted(own, key=lambda path: path.parts)


def own_content(root: Path, points: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return, for each point, what the files and folders are that its entries name.

    They are those that neither git nor a stage has made what they are, in the repository or
    elsewhere.

    Returns
    -------
    list
        Of DVC's hashes by path, from its own record where a file lies as it did.
    """
    paths = [[*own_files(root, point), *_whole(point)] for point in points]
    distinct = dict.fromkeys(sum(paths, []))
    others = [path for path in distinct if path.is_absolute() or not _is_in_git(root, path)]
    hashes = _hashes(root, others)
    return [{str(path): hashes[path] for path in of if path in hashes} for of in paths]


def check_own(root: Path, own: Mapping[str, str]) -> None:
    """See that the files that a point is named by are still what they were.

    Raises
    ------
    StageFailedError
        Where one is gone, or has another content.
    """
    paths = [Path(path) for path in own if (root / path).exists()]
    found = {str(path): found for path, found in _hashes(root, paths).items()}
    if changed := [path for path in own if found.get(path) != own[path]]:
        raise StageFailedError(
            f"{', '.join(changed)}: changed since the sweep began, so that this is another point; "
            "put it back, or start the sweep again"
        )


def _whole(parameters: Mapping[str, Any]) -> list[Path]:
    """Return the whole paths of files and folders that entries name."""
    paths = sorted({Path(os.path.expanduser(value)) for _, value in named(parameters)})
    return [path for path in paths if path.is_absolute() and path.exists()]


def _is_in_git(root: Path, path: Path) -> bool:
    """Return whether git has all of a file or folder, and no link leads to it or out of it."""
    if any((root / each).is_symlink() for each in (path, *path.parents)):
        return False
    listed = []
    for options in (["--stage", "--error-unmatch"], ["--others"]):
        listed.append(git(root, "ls-files", "-z", *options, "--", os.fspath(path)))
    of_git, others = listed
    modes = {line.partition(b" ")[0] for line in of_git.stdout.split(b"\0") if line}
    return of_git.returncode == 0 and modes <= _FILE_MODES and not others.stdout


def _hashes(root: Path, paths: Sequence[Path]) -> dict[Path, str]:
    if not paths or not (root / ".dvc").is_dir():  # without DVC no point can run
        return {}
    from dvc.repo import Repo
    from dvc_data.hashfile.build import build
    from dvc_objects.fs.local import LocalFileSystem

    with Repo(os.fspath(root)) as repo:
        found = {}
        for path in paths:
            place = os.fspath((root / path).resolve())
            _, _, content = build(repo.cache.local, place, LocalFileSystem(), "md5", dry_run=True)
            found[path] = str(content.hash_info.value)
    return found


def named(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys that may name files, dotted, and what they name."""
    for key, value in dotted(parameters):
        if key.rpartition(".")[2] in NAMING and isinstance(value, str) and value:
            yield key, value


def leads_out(value: str) -> bool:
    """Return whether a path is relative and leaves the repository, where no clone could have it."""
    return os.path.normpath(value).split(os.sep)[0] == os.pardir


def _may_be_own(path: Path, entries: set[str]) -> bool:
    first, *others = path.parts or ("",)
    if not first or path.is_absolute() or leads_out(str(path)):
        return False
    if first in WRITTEN[-2:]:
        return bool(others) and others[0] not in entries
    return first not in WRITTEN


def _link(own: Path, link: Path) -> None:
    """Link what is not there; of a folder of which git has a part, file by file."""
    if not os.path.lexists(link):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(own.absolute(), target_is_directory=own.is_dir())
    elif link.is_dir() and not link.is_symlink():
        for path in own.rglob("*"):
            if path.is_file():
                _link(path, link / path.relative_to(own))


def _pattern(path: Path) -> str:
    """Return what git calls a path in its list of what it ignores."""
    return "/" + re.sub(r"([\\*?\[ ])", r"\\\1", path.as_posix())
