"""Files that appear whole or not at all."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from implicit_models.files import PARTIAL, listed, remove, size, unsealed, write_whole


def test_what_is_written_is_there(tmp_path: Path):
    path = tmp_path / "file.txt"
    write_whole(path, "first")
    write_whole(path, "Größe")
    assert path.read_bytes() == "Größe".encode()
    write_whole(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_with_the_file_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "file.txt"
    write_whole(path, "first")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"No space left on device: '{path}'") as caught:
        write_whole(path, "second")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_nothing_is_written_through_a_link_in_the_place_of_what_is_not_complete(
    tmp_path: Path, link: Callable[[Path, Path], None]
):
    (tmp_path / "precious").write_text("precious")
    link(tmp_path / "precious", tmp_path / f".file.txt{PARTIAL}")
    write_whole(tmp_path / "file.txt", "content")
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "file.txt").read_text() == "content"
    assert not (tmp_path / "file.txt").is_symlink()


def test_a_link_is_removed_and_what_it_leads_to_stays(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file.txt").write_text("content")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for path in (tmp_path / "link", tmp_path / "missing"):
        remove(path)
        assert not path.is_symlink()
    assert (tmp_path / "folder" / "file.txt").exists()
    remove(tmp_path / "folder" / "file.txt")
    remove(tmp_path / "folder")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["[" * 100_000 + "]" * 100_000, "9" * 5000])
def test_a_checksum_does_not_help_what_nobody_can_read(value: str):
    content = f'{{"a": {value}'
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    with pytest.raises(ValueError):
        unsealed(f'{content}, "checksum": "{digest}"}}')


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"/dev/zero": {"bytes": 0, "sha256": ""}}, "does not lie beside it"),
        ({"../x": {"bytes": 0, "sha256": ""}}, "does not lie beside it"),
        ({"a/../../x": {"bytes": 0, "sha256": ""}}, "does not lie beside it"),
        ({"x": {"bytes": 0}}, "does not say what 'x' was"),
        ({"x": 3}, "does not say what 'x' was"),
        ([], "lists files in a list"),
        (None, "lists files in a NoneType"),
    ],
)
def test_a_list_of_files_lists_what_lies_beside_it(files: object, why: str):
    with pytest.raises(ValueError, match=why):
        listed(files)


def test_a_device_is_no_file(tmp_path: Path):
    (tmp_path / "file").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is no file"):
        size(tmp_path / "file")
