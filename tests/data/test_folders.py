"""A folder of data appears as a whole, whatever became of those that wrote it before."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from implicit_models.data import folders
from implicit_models.data.folders import FolderBusyError, partial_folder, written_whole
from tests.repositories import ROOT

KILLED = """
import os, signal
from pathlib import Path
from implicit_models.data.folders import written_whole

with written_whole(Path("data", "a5"), "metadata.json", str.isalpha) as partial:
    (partial / "train").mkdir()
    (partial / "train" / "inputs.npy").write_text("half of it")
    os.kill(os.getpid(), signal.{signal})
"""


def write(folder: Path, content: str) -> None:
    with written_whole(folder, "metadata.json", str.isalpha) as partial:
        (partial / "train").mkdir()
        (partial / "train" / "inputs.npy").write_text(content)
        (partial / "metadata.json").write_text("{}")


def left(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM"])
def test_what_killed_processes_have_left_is_removed(signal: str, tmp_path: Path) -> None:
    whole = ["a5", "a5/metadata.json", "a5/train", "a5/train/inputs.npy"]
    write(tmp_path / "data" / "a5", "before")
    for _ in range(2):
        command = [sys.executable, "-c", KILLED.format(signal=signal)]
        done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
        assert done.returncode < 0
        assert [name for name in left(tmp_path / "data") if "/" not in name] == [
            ".a5.partial",
            "a5",
        ]
    assert (tmp_path / "data" / "a5" / "train" / "inputs.npy").read_text() == "before"
    write(tmp_path / "data" / "a5", "after")
    assert left(tmp_path / "data") == whole
    assert (tmp_path / "data" / "a5" / "train" / "inputs.npy").read_text() == "after"


def test_two_writers_of_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_PATIENCE_SECONDS", 0.2)
    folder = tmp_path / "a5"
    with written_whole(folder, "metadata.json", str.isalpha) as partial:
        (partial / "train").write_text("the first's")
        with pytest.raises(FolderBusyError, match="a5: another process is writing it; wait for"):
            write(folder, "the second's")
        write(tmp_path / "s3", "another's")
        (partial / "metadata.json").write_text("{}")
    assert (folder / "train").read_text() == "the first's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a5", "s3"]


def test_one_that_ends_in_a_moment_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "a5"
    with written_whole(folder, "metadata.json", str.isalpha) as partial:
        second = threading.Thread(target=write, args=(folder, "the second's"))
        second.start()
        second.join(0.3)
        (partial / "metadata.json").write_text("{}")
        assert second.is_alive() and not folder.exists()
    second.join(60)
    assert (folder / "train" / "inputs.npy").read_text() == "the second's"
    assert [path.name for path in tmp_path.iterdir()] == ["a5"]


def test_two_that_end_again_and_again_do_not_trip_over_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removes the hidden folder at its end, while the other looks for it."""
    monkeypatch.setattr(folders, "_PATIENCE_SECONDS", 300.0)
    monkeypatch.setattr(folders, "_POLL_SECONDS", 0.001)
    folder = tmp_path / "a5"
    failed: list[BaseException] = []

    def write_often(content: str) -> None:
        try:
            for _ in range(300):
                with partial_folder(folder) as partial:
                    (partial / "train").write_text(content)
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=write_often, args=(each,)) for each in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert not failed and not list(tmp_path.iterdir())


def test_what_goes_between_two_looks_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, lost = os.open, iter([True, True, False])

    def lose(path, *arguments, **names):
        if Path(path).name == ".a5.partial" and next(lost):
            Path(path).rmdir()
        return opened(path, *arguments, **names)

    monkeypatch.setattr(folders.os, "open", lose)
    with partial_folder(tmp_path / "a5") as partial:
        assert partial.is_dir()


def test_a_file_where_the_folder_would_be_written_stays(tmp_path: Path) -> None:
    (tmp_path / ".a5.partial").write_text("mine")
    with pytest.raises(FileExistsError, match=r"\.a5\.partial"):
        write(tmp_path / "a5", "before")
    assert (tmp_path / ".a5.partial").read_text() == "mine"


def test_a_parent_that_cannot_be_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(tmp_path / "not_mounted")
    before = time.monotonic()
    with pytest.raises(FileExistsError):
        write(tmp_path / "data" / "a5", "before")
    assert time.monotonic() - before < 2


def test_a_link_where_the_folder_would_be_written_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    (tmp_path / ".a5.partial").symlink_to("mine")
    with pytest.raises(OSError, match=r"\.a5\.partial"):
        write(tmp_path / "a5", "before")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "mine"
