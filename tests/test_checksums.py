"""Lists of checksums, and folders that are filled as a whole."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from implicit_models.checksums import (
    CHECKSUMS,
    DamagedFileError,
    compare_folder,
    filled,
    read_checksums,
)


@pytest.fixture
def folder(tmp_path) -> Path:
    with filled(tmp_path / "folder") as partial:
        (partial / "a.txt").write_text("first")
        (partial / "b.txt").write_text("second")
    return tmp_path / "folder"


def test_what_was_written_passes_and_nothing_else_is_left(folder):
    compare_folder(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "b.txt", CHECKSUMS]
    assert list(folder.parent.iterdir()) == [folder]
    assert {name: each["bytes"] for name, each in read_checksums(folder / CHECKSUMS).items()} == {
        "a.txt": 5,
        "b.txt": 6,
    }


def test_a_folder_without_a_list_is_from_elsewhere(tmp_path):
    (tmp_path / "a.txt").touch()
    compare_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "b.txt").write_text("secand"), "b.txt: the content has changed"),
        (lambda folder: (folder / "b.txt").write_text("secon"), "b.txt has 5 bytes, 6 were"),
        (lambda folder: (folder / "b.txt").unlink(), "b.txt is missing"),
        (lambda folder: (folder / CHECKSUMS).write_text(""), f"{CHECKSUMS} is damaged"),
        (lambda folder: (folder / CHECKSUMS).write_text("[]"), f"{CHECKSUMS} is damaged"),
        (lambda folder: (folder / CHECKSUMS).write_text('{"files": {}}'), "is damaged"),
        (lambda folder: (folder / CHECKSUMS).write_bytes(b"\xff"), f"{CHECKSUMS} is damaged"),
    ],
)
def test_a_change_is_named(folder, change, words):
    change(folder)
    with pytest.raises(DamagedFileError, match=words):
        compare_folder(folder)
    if "b.txt" in words:
        compare_folder(folder, ["a.txt"])


def test_filled_again_it_has_the_new_files_alone_and_what_is_to_stay(folder):
    (folder / "state").write_text("of before")
    with filled(folder, keep=["state"]) as partial:
        assert (folder / "a.txt").exists()  # until all is written
        (partial / "c.txt").write_text("third")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["c.txt", CHECKSUMS, "state"]
    assert sorted(read_checksums(folder / CHECKSUMS)) == ["c.txt", "state"]
    compare_folder(folder)


@pytest.mark.parametrize("filename", [None, "somewhere"])
def test_what_fails_leaves_the_folder_as_it_was(folder, filename):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), filename)
    words = f"No space left.*{filename or folder}"
    with pytest.raises(OSError, match=words), filled(folder) as partial:
        (partial / "a.txt").write_text("other")
        raise error
    compare_folder(folder)
    assert (folder / "a.txt").read_text() == "first"
    assert list(folder.parent.iterdir()) == [folder]


def test_a_process_killed_before_leaves_nothing_in_the_way(folder):
    (folder.parent / ".folder.partial").mkdir()
    (folder.parent / ".folder.partial" / "old").touch()
    with filled(folder) as partial:
        (partial / "new.txt").touch()
    assert sorted(json.loads((folder / CHECKSUMS).read_text())["files"]) == ["new.txt"]


def test_a_copy_of_another_entrys_folder_is_none_of_this_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with filled(Path("models/a/final")) as folder:
        (folder / "model.safetensors").write_text("weights")
    compare_folder(Path("models/a/final"))
    shutil.copytree("models/a", "models/b")
    with pytest.raises(DamagedFileError, match="models/b/final is a copy of models/a/final"):
        compare_folder(Path("models/b/final"))
    shutil.copytree("models/a/final", "mine")  # elsewhere, it is whoever has copied it who knows
    compare_folder(Path("mine"))
    compare_folder((tmp_path / "models/a/final").absolute())
