"""Clones for the points of sweeps and for the stages of nodes: what their origin hands on."""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from dvc.config import Config
from dvc.repo import Repo

from pipelines.cluster import node_workspace
from pipelines.cluster.exchange import Request
from pipelines.sweeps.points import read_origin
from pipelines.sweeps.workspaces import Workspace, cache_folder

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")  # DVC's

NAMES = ("plain", "a #1, 'b'", 'one "two" #3 = 4;', "[x], %y ${z}")


def git(path: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    return subprocess.check_output(["git", *identity, *arguments], cwd=path, text=True)


def repository(path: Path, **files: str) -> Path:
    """Make a repository of DVC, with files that git has got."""
    files = {".dvc/config": "[core]\n    analytics = false\n", "dvc.yaml": "stages: {}\n"} | files
    files[".dvc/.gitignore"] = "/tmp\n/cache\n/config.local\n"
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    git(path, "init", "--quiet")
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--message", "A project")
    return path


def set_locally(path: Path, remote: Path) -> None:
    settings: Any
    with Config(os.fspath(path / ".dvc")).edit("local") as settings:
        settings["remote"]["own"] = {"url": os.fspath(remote)}
        settings["core"]["remote"] = "own"


def settings_of(path: Path) -> tuple[str, str]:
    """Return DVC's cache and its default remote, as DVC reads them."""
    with contextlib.closing(Repo(os.fspath(path))) as repo:
        remote = repo.config["remote"][repo.config["core"]["remote"]]
        return repo.cache.local_cache_dir, remote["url"]


@pytest.mark.parametrize("name", NAMES)
def test_a_point_has_the_cache_and_the_settings_of_a_repository_of_any_name(tmp_path, name):
    root = repository(tmp_path / name)
    set_locally(root, tmp_path / name / "remote")
    workspace = Workspace(root, root / ".dvc" / "tmp" / "point", read_origin(root))
    workspace.prepare(cache_folder(root))
    assert settings_of(workspace.folder) == settings_of(root)
    assert settings_of(root)[0].startswith(os.fspath(root / ".dvc" / "cache"))


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_of_a_node_has_the_cache_of_a_clone_of_any_name(tmp_path, name):
    root = repository(tmp_path / name)
    set_locally(root, tmp_path / name / "remote")
    commit = git(root, "rev-parse", "HEAD").strip()
    request = Request(stage="train@x", commit=commit, parameters={}, dependencies={})
    with node_workspace.workspace(root, request, print) as folder:
        assert settings_of(folder) == settings_of(root)
