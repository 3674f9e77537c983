"""A checkpoint of somebody else executes nothing, whatever it holds."""

import importlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    Metadata,
)

from implicit_models.files import checksum
from implicit_models.training.checkpoint_files import PROGRESS, write_progress
from implicit_models.training.checkpoint_metadata import _DESCRIPTIONS, METADATA, read_metadata
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.progress import Progress
from tests.training.setup_checkpoints import assert_same, trained, whole_state


class Executed:
    """Makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def execute(metadata: Metadata, folder: Path) -> object:
    return Executed(folder)


def execute_within(metadata: Metadata, folder: Path) -> object:
    metadata.planner_data = Executed(folder)
    return metadata


def describe_bytes(metadata: Metadata, folder: Path) -> object:
    """Make torch load what follows as bytes, which are a pickle of anything."""
    for name in metadata.state_dict_metadata:
        metadata.state_dict_metadata[name] = BytesStorageMetadata()
    for file in folder.parent.glob("identity/step_000000004/*.distcp"):
        file.write_bytes(pickle.dumps(Executed(folder)))
    return metadata


def point_elsewhere(metadata: Metadata, folder: Path) -> object:
    folder.with_name("elsewhere").write_bytes(b"")
    for where in metadata.storage_data.values():
        where.relative_path = "../../elsewhere"
    return metadata


def be_something_else(metadata: Metadata, folder: Path) -> object:
    return {"no": "metadata"}


@pytest.mark.parametrize(
    ("craft", "why"),
    [
        (execute, ".metadata asks for posix.mkdir; it is not executed"),
        (execute_within, ".metadata asks for posix.mkdir; it is not executed"),
        (describe_bytes, "metadata.BytesStorageMetadata; it is not executed"),
        (point_elsewhere, ".metadata names '../../elsewhere', no file beside it"),
        (be_something_else, ".metadata holds a dict in the place of a Metadata"),
    ],
)
def test_a_crafted_checkpoint_is_refused(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    craft: Callable[[Metadata, Path], object],
    why: str,
) -> None:
    folder = CheckpointFolder(tmp_path, "identity")
    module, optimiser = trained(2)
    folder.save(module, optimiser, Progress(2))
    folder.save(*trained(4), Progress(4))
    folder.wait()
    newest = folder.path / "step_000000004"
    metadata = pickle.loads((newest / METADATA).read_bytes())
    crafted = pickle.dumps(craft(metadata, tmp_path / "executed"))
    (newest / METADATA).write_bytes(crafted)
    sign(newest)

    other, other_optimiser = trained(1)
    assert folder.resume(other, other_optimiser) == Progress(2)
    assert_same(whole_state(other, other_optimiser), whole_state(module, optimiser))
    assert not (tmp_path / "executed").exists()
    (warning,) = (each for each in caplog.messages if "cannot be used" in each)
    assert why in warning


def test_what_a_pickle_names_cannot_be_changed_by_it(tmp_path: Path) -> None:
    """An opcode sets attributes: of a class, it would change what all of this process does."""
    names = [(module, name) for module, known in _DESCRIPTIONS.items() for name in known]
    there = [each for each in names if each[0] != "pathlib._local"]
    for module, name in there:
        opcodes = b"\x80\x02" + b"c%b\n%b\n" % (module.encode(), name.encode())
        opcodes += b"N}X\x06\x00\x00\x00poisonK\x01s\x86b."
        (tmp_path / METADATA).write_bytes(opcodes)
        with pytest.raises(ValueError, match=r"^\.metadata (holds|is no)"):
            read_metadata(tmp_path / METADATA, "")
        assert not hasattr(getattr(importlib.import_module(module), name), "poison")
    assert len(there) > 20


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    folder, precious = CheckpointFolder(tmp_path, "identity"), tmp_path / "precious"
    precious.mkdir()
    (precious / METADATA).write_text("precious")
    folder.path.mkdir()
    (folder.path / "step_000000004.partial").symlink_to(precious)
    folder.save(*trained(4), Progress(4))
    folder.wait()
    assert [path.read_text() for path in precious.iterdir()] == ["precious"]
    assert folder.resume(*trained(1)) == Progress(4)


@pytest.mark.parametrize("has_getattr", [False, True], ids=["this Python's", "3.11.2's"])
def test_a_description_is_read_as_torch_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_getattr: bool
) -> None:
    if has_getattr:
        reduced = lambda each, _: (getattr, (type(each), each.name))  # noqa: E731
        monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", reduced)
    folder = CheckpointFolder(tmp_path, "identity")
    folder.save(*trained(4), Progress(4))
    folder.wait()
    path = folder.path / "step_000000004" / METADATA
    ours, theirs = read_metadata(path, "id"), pickle.loads(path.read_bytes())
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.storage_data == theirs.storage_data
    assert len(ours.storage_data) > 10
    assert not has_getattr or b"getattr" in path.read_bytes()
    assert folder.resume(*trained(1)) == Progress(4)


def test_the_crafted_ones_would_otherwise_be_loaded(tmp_path: Path) -> None:
    """What `sign` writes is whole: only what is in it has it refused."""
    folder = CheckpointFolder(tmp_path, "identity")
    folder.save(*trained(4), Progress(4))
    folder.wait()
    sign(folder.path / "step_000000004")
    assert folder.resume(*trained(1)) == Progress(4)
    pickle.loads(pickle.dumps(Executed(tmp_path / "executed")))
    assert (tmp_path / "executed").is_dir()


def sign(folder: Path) -> None:
    """Write the sizes and checksums of a checkpoint's files as they are now."""
    progress = json.loads((folder / PROGRESS).read_text())["progress"]
    (folder / PROGRESS).unlink()
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": checksum(file)}
        for file in folder.iterdir()
    }
    write_progress(folder, Progress(**progress), files)


def test_a_copied_checkpoint_is_the_same(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "here", "identity")
    folder.save(*trained(4), Progress(4, history=[{"step": 4, "loss": float("nan")}]))
    folder.wait()
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    found = CheckpointFolder(tmp_path / "there", "identity").resume(*trained(1))
    assert found is not None
    assert found.step == 4
