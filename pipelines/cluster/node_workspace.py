"""A clone of its own for each stage that a node runs, made in a moment and gone afterwards.

A node may run several stages at once, of flows with other commits and other parameters; none sees
the others' files. What shall outlast the stage, or a node that dies, is shared with the node's
clone: git's objects, DVC's cache, checkpoints, and what is tracked and not sent yet.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dvc.config import Config
from dvc.repo import Repo

from pipelines.cluster.exchange import Request
from pipelines.cluster.gpus import node_name
from pipelines.git import git, text_of
from pipelines.running import InfrastructureError, Log, StageFailedError, file_lock, stage_lock

SHARED = ("checkpoints", ".tracking")  # folders


@contextlib.contextmanager
def workspace(clone: Path, request: Request, log: Log) -> Iterator[Path]:
    """Make the clone in which a request's stage runs; one process has it at a time.

    Parameters
    ----------
    clone
        The node's clone of the repository.

    Yields
    ------
    Path
        The workspace, at the request's commit and with its parameters.

    Raises
    ------
    StageFailedError
        Where the commit is not to be had, or the file system has no flock.
    """
    names = json.dumps([request.commit, dict(request.parameters)], sort_keys=True)
    digest = hashlib.sha256(names.encode()).hexdigest()[:12]
    folder = clone.resolve() / ".dvc" / "tmp" / "workspaces" / quote(node_name(), safe="")
    path = folder / f"{quote(request.stage, safe='@')}-{digest}"
    taken = "this node runs the same stage for another flow: waiting for that"
    with file_lock(path.with_name(f"{path.name}.lock"), log, taken):
        if path.exists():
            # A stage whose flow was killed may still run there: it holds its lock until it ends.
            with stage_lock(path, request.stage, log):
                pass
            shutil.rmtree(path)
        try:
            _make(clone.resolve(), path, request)
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _make(clone: Path, path: Path, request: Request) -> None:
    _expect_commit(clone, request.commit)
    _git(clone, "clone", "--quiet", "--shared", "--no-checkout", str(clone), str(path))
    _git(path, "checkout", "--quiet", "--detach", request.commit)
    for name, text in request.parameters.items():
        (path / name).write_text(text, encoding="utf-8")
    for name in SHARED:
        (clone / name).mkdir(exist_ok=True)
        (path / name).symlink_to(clone / name)
    _share_cache(clone, path)


def _share_cache(clone: Path, path: Path) -> None:
    """Set in a workspace the cache of the clone, and the remotes that only the clone knows."""
    with contextlib.closing(Repo(os.fspath(clone))) as repo:
        cache = repo.cache.legacy.path
    clones = Config(os.fspath(clone / ".dvc"))
    # A remote that was added in the clone and not committed is in the file that git tracks.
    added: Any = clones.load_one("repo")
    local: Any = clones.load_one("local")
    config = Config(os.fspath(path / ".dvc"))
    content: Any
    with config.edit("local") as content:
        if "remote" in added["core"]:
            content["core"]["remote"] = added["core"]["remote"]
        content["remote"].update(added["remote"])
        for section, values in local.items():
            content[section].update(values)
        content["cache"]["dir"] = cache
        content["core"]["site_cache_dir"] = os.fspath(path / ".dvc" / "site")


def _expect_commit(clone: Path, commit: str) -> None:
    """Fetch the commit where the clone does not have it."""
    if _has(clone, commit):
        return
    try:
        _git(clone, "fetch", "--quiet", "--all")
    except InfrastructureError as error:
        raise InfrastructureError(f"the commit {commit[:10]} is not in {clone}; {error}") from None
    if not _has(clone, commit):
        raise StageFailedError(
            f"the commit {commit[:10]} is neither in {node_name()}:{clone} nor where that fetches "
            "from; push it (`git push`), or fetch it there"
        )


def _has(clone: Path, commit: str) -> bool:
    with contextlib.suppress(InfrastructureError):
        _git(clone, "cat-file", "-e", f"{commit}^{{commit}}")
        return True
    return False


def _git(folder: Path, *arguments: str) -> None:
    done = git(folder, *arguments, GIT_TERMINAL_PROMPT="0")
    if done.returncode:
        said = text_of(done.stderr).strip()
        raise InfrastructureError(
            f"{folder}: git {arguments[0]} failed: {said}; mend that there, and start the same "
            "command again"
        )
