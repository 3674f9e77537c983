"""Clones for the points of sweeps and for the stages of nodes: what their origin hands on."""

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from dvc.config import Config
from dvc.repo import Repo

from pipelines.cluster import node_workspace
from pipelines.cluster.exchange import Request
from pipelines.running import StageFailedError
from pipelines.sweeps.own_files import check_own, own_content
from pipelines.sweeps.points import Point, SweepError, check_places, read_origin
from pipelines.sweeps.workspaces import Workspace, cache_folder, run_point

pytestmark = pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")  # DVC's

NAMES = ("plain", "a #1, 'b'", 'one "two" #3 = 4;', "[x], %y ${z}")


def git(path: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    return subprocess.check_output(["git", *identity, *arguments], cwd=path, text=True)


def write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def repository(path: Path, **files: str) -> Path:
    """Make a repository of DVC, with files that git has got."""
    files = {".dvc/config": "[core]\n    analytics = false\n", "dvc.yaml": "stages: {}\n"} | files
    files[".dvc/.gitignore"] = "/tmp\n/cache\n/config.local\n"
    write(path, files)
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
    workspace.prepare(cache_folder(root), {})
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


OWN = {
    "corpora": {
        "text": {"source": "text", "tokenizer": "text/tokenizer.json"},
        "mixed": {"source": "./half", "tokenizer": "bytes"},
        "odd": {"source": "a *#? [b] ", "tokenizer": "EleutherAI/gpt-neox-20b"},
        "away": {"source": "../elsewhere"},
        "not_there": {"source": "gone"},
    },
    "runs": {"x": {"dataset": "text", "model": {"family": "mamba2", "source": None}}},
    "baselines": {"y": {"model": {"source": "models/downloaded"}}},
    "upcycled": {"z": {"model": {"source": "models/x/final"}}},
    "readings": {"r": {"model": "my_model"}, "s": {"model": "models"}, "t": {"model": "results/a"}},
}


def test_a_point_reads_what_entries_name_and_git_has_not_got(tmp_path):
    root = repository(
        tmp_path / "root", **{".gitignore": "/text/\n/models/\n", "half/known.txt": "known"}
    )
    own = {"text/train/a": "text", "text/tokenizer.json": "{}", "half/sub/own": "own"}
    own |= {"models/downloaded/w": "weights", "my_model/w": "mine", "a *#? [b] /file": "odd"}
    of_stages = {"models/x/final/w": "trained", "results/a": "written"}
    write(root, own | of_stages | {"../elsewhere/file": "away"})
    workspace = Workspace(root, root / ".dvc" / "tmp" / "point", read_origin(root))
    workspace.prepare(cache_folder(root), OWN)
    folder = workspace.folder
    assert {name: (folder / name).read_text() for name in own} == own
    assert (folder / "half" / "known.txt").read_text() == "known"
    # What a stage writes, and empties before, is no link to the user's.
    assert not (folder / "models" / "x").exists() and not (folder / "results").exists()
    assert not (folder / "models").is_symlink() and not (folder / "half").is_symlink()
    # An experiment takes along nothing of it.
    assert git(folder, "status", "--porcelain", "--untracked-files=all") == ""
    workspace.prepare(cache_folder(root), OWN)
    workspace.remove()
    assert {name: (root / name).read_text() for name in own} == own


def hashed(root: Path, *sources: str) -> set[str]:
    """Return of which sources the content is part of a point's name."""
    point = {"corpora": {f"c{i}": {"source": source} for i, source in enumerate(sources)}}
    (found,) = own_content(root, [point])
    return set(found)


def test_own_content_is_what_git_has_not_got_wherever_it_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", os.fspath(tmp_path / "home"))
    write(tmp_path, {"big/a.txt": "a", "home/b.txt": "b", "target.txt": "t"})
    root = tmp_path / "root"
    root.mkdir()
    (root / "tracked_link").symlink_to(tmp_path / "target.txt")
    repository(root, **{"known/k.txt": "k", "partly/known.txt": "k", ".gitignore": "/texts\n"})
    (root / "texts").symlink_to(tmp_path / "big")
    write(root, {"partly/own.txt": "o"})
    inner = repository(root / "inner", **{"sub/c.txt": "c"})
    own = ["texts/a.txt", "texts", "inner/sub/c.txt", "inner", "tracked_link", "partly"]
    # A point reads whole paths where they are, and not in its clone.
    whole = [os.fspath(tmp_path / "big" / "a.txt"), os.fspath(root / "known" / "k.txt")]
    found = hashed(root, *own, "known", "known/k.txt", "~/b.txt", "~/none.txt", *whole, "org/name")
    assert found == {*own, *whole, os.fspath(tmp_path / "home" / "b.txt")}
    before = own_content(root, [{"corpora": {"c": {"source": "tracked_link"}}}])
    write(tmp_path, {"target.txt": "another"})
    assert own_content(root, [{"corpora": {"c": {"source": "tracked_link"}}}]) != before
    git(inner, "rm", "--quiet", "sub/c.txt")
    assert hashed(root, "inner/sub/c.txt") == set()  # and not there


def test_a_point_does_not_run_on_another_text_than_it_is_named_by(tmp_path):
    root = repository(tmp_path / "root", **{".gitignore": "/text/\n"})
    write(root, {"text/a": "first", "params.yaml": ""})
    parameters = {"corpora": {"c": {"source": "text"}}}
    (own,) = own_content(root, [parameters])
    point = Point("s-1", "", (), parameters, own)
    workspace = Workspace(root, root / ".dvc" / "tmp" / "s-1", read_origin(root))
    arguments = (workspace, cache_folder(root), point)
    write(root, {"text/a": "second"})
    with pytest.raises(StageFailedError, match="text: changed since the sweep.*; put it back"):
        run_point(*arguments, print)
    assert not workspace.folder.exists()


def test_an_experiment_whose_text_has_changed_meanwhile_is_not_handed_over(tmp_path, monkeypatch):
    root = repository(tmp_path / "root", **{".gitignore": "/text/\n"})
    write(root, {"text/a": "first"})
    parameters = {"corpora": {"c": {"source": "text"}}}
    (own,) = own_content(root, [parameters])
    point = Point("s-1", "", (), parameters, own)
    workspace = Workspace(root, root / ".dvc" / "tmp" / "s-1", read_origin(root))
    arguments = (workspace, cache_folder(root), point)
    texts, ran, handed_over = iter(["second", "first"]), [], []

    def run(self, command, log, lock):
        ran.append((root / "text" / "a").read_text())
        write(root, {"text/a": next(texts)})

    monkeypatch.setattr(Workspace, "run", run)
    monkeypatch.setattr(Workspace, "has", lambda *_: bool(ran))
    monkeypatch.setattr(Workspace, "hand_over", lambda *_: handed_over.append(len(ran)))
    with pytest.raises(StageFailedError, match="changed since the sweep began"):
        run_point(*arguments, print)
    with pytest.raises(StageFailedError, match="text: changed since"):  # before it runs
        run_point(*arguments, print)
    write(root, {"text/a": "first"})
    # What is there was made with the other text, and is made again.
    assert run_point(*arguments, print)
    assert (ran, handed_over) == (["first", "first"], [2])


def test_a_point_may_run_while_its_text_is_committed_and_others_come(tmp_path):
    root = repository(tmp_path / "root", **{"half/known": "known"})
    write(root, {"text/a": "first", "half/own": "own"})
    parameters = {"corpora": {"c": {"source": "text"}, "d": {"source": "half"}}}
    (own,) = own_content(root, [parameters])
    assert set(own) == {"text", "half"}
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "A text")
    check_own(root, own)
    (root / "text" / "a").unlink()
    with pytest.raises(StageFailedError, match="text: changed"):
        check_own(root, own)


def test_a_path_out_of_the_repository_is_told_before_anything_runs(tmp_path):
    with pytest.raises(SweepError) as raised:
        check_places(tmp_path / "root", [Point("s-1", "", (), OWN)])
    assert str(raised.value) == (
        "corpora.away.source = '../elsewhere' leads out of the repository, and each point runs in "
        f"a clone; allowed is a path in the repository, or a whole one: {tmp_path / 'elsewhere'}"
    )
    check_places(tmp_path, [Point("s-1", "", (), OWN | {"corpora": {}})])
