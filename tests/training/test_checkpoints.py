"""Checkpoints: atomic, complete, bound to one training, and forgiving of a broken newest one."""

import contextlib
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.progress import Progress
from implicit_models.training.state_file import load_state, save_state
from tests.training.setup_checkpoints import (
    assert_same,
    build_module,
    build_optimiser,
    make_steps,
    trained,
    whole_state,
)

PROGRESS = Progress(
    7,
    sequences=28,
    batch_size=4,
    tokens=420,
    flops=1e9,
    seconds=1.5,
    skipped_steps=2,
    changes=["another batch"],
    history=[{"step": 6, "loss": 0.25}],
)
REPOSITORY = Path(__file__).parents[2]


def folder_with(root: Path, *steps: int) -> tuple[CheckpointFolder, dict[int, dict]]:
    """Write a checkpoint after each of these many steps; return the states they hold as well."""
    folder = CheckpointFolder(root, "identity")
    states = {}
    for step in steps:
        module, optimiser = trained(step)
        folder.save(module, optimiser, Progress(step))
        states[step] = whole_state(module, optimiser)
    folder.wait()
    return folder, states


def names_in(folder: CheckpointFolder) -> list[str]:
    return sorted(each.name for each in folder.path.iterdir())


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the library's warnings; those of torch's loggers are left out."""
    records = [each for each in caplog.records if each.name.startswith("implicit_models")]
    return [each.getMessage() for each in records if each.levelno >= logging.WARNING]


def test_everything_comes_back(tmp_path: Path) -> None:
    module, optimiser = trained(3)
    folder = CheckpointFolder(tmp_path, "identity")
    folder.save(module, optimiser, PROGRESS)

    other, other_optimiser = trained(1, seed=1)
    assert folder.resume(other, other_optimiser) == PROGRESS
    assert_same(whole_state(other, other_optimiser), whole_state(module, optimiser))
    assert other.model.head.weight is other.model.embedding.weight
    assert [group["weight_decay"] for group in other_optimiser.param_groups] == [0.1, 0.0]
    # What comes back is trained on as what was saved is.
    make_steps(module, optimiser, 2)
    make_steps(other, other_optimiser, 2)
    assert_same(whole_state(other, other_optimiser), whole_state(module, optimiser))


def test_a_state_file_brings_everything_back_and_is_the_same_bytes_each_time(
    tmp_path: Path,
) -> None:
    module, optimiser = trained(3)
    paths = [tmp_path / "one" / "state.safetensors", tmp_path / "other" / "state.safetensors"]
    for path in paths:
        save_state(path, module, optimiser, PROGRESS)
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert paths[0].read_bytes() == paths[1].read_bytes()

    other, other_optimiser = trained(1, seed=1)
    assert load_state(paths[0], other, other_optimiser) == PROGRESS
    assert_same(whole_state(other, other_optimiser), whole_state(module, optimiser))
    save_state(paths[1], other, other_optimiser, PROGRESS)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_state_before_the_first_step(tmp_path: Path) -> None:
    module, optimiser = trained(0)
    before = whole_state(module, optimiser)
    folder = CheckpointFolder(tmp_path, "identity")
    folder.save(module, optimiser, Progress(0))
    save_state(tmp_path / "state.safetensors", module, optimiser, Progress(0))
    assert not optimiser.state
    assert_same(whole_state(module, optimiser), before)

    for bring_back in (folder.resume, lambda *to: load_state(tmp_path / "state.safetensors", *to)):
        other, other_optimiser = trained(2, seed=1)
        assert bring_back(other, other_optimiser) == Progress(0)
        assert not other_optimiser.state
        assert_same(whole_state(other, other_optimiser), before)


def test_random_numbers_are_left_alone(tmp_path: Path) -> None:
    module, optimiser = trained(1)
    folder = CheckpointFolder(tmp_path, "identity")
    before = torch.get_rng_state()
    folder.save(module, optimiser, PROGRESS)
    folder.resume(module, optimiser)
    assert torch.equal(torch.get_rng_state(), before)


def test_only_the_newest_two_are_kept_and_nothing_partial(tmp_path: Path) -> None:
    (tmp_path / "identity" / "step_000000004.partial").mkdir(parents=True)
    folder, _ = folder_with(tmp_path, 1, 2, 3, 4)
    assert names_in(folder) == ["step_000000003", "step_000000004"]
    single = CheckpointFolder(tmp_path, "identity", kept=1)
    single.save(*trained(5), Progress(5))
    single.wait()
    assert names_in(single) == ["step_000000005"]


def test_the_same_step_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    folder, _ = folder_with(tmp_path, 1, 2)
    module, optimiser = trained(2, seed=5)
    folder.save(module, optimiser, Progress(2, seconds=3.0))
    other, other_optimiser = trained(0)
    assert folder.resume(other, other_optimiser) == Progress(2, seconds=3.0)
    assert_same(whole_state(other, other_optimiser), whole_state(module, optimiser))
    assert names_in(folder) == ["step_000000001", "step_000000002"]


def halve(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def flip_a_bit(file: Path) -> None:
    """Change a number amid a tensor, which its format would not notice."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def name_another_step(file: Path) -> None:
    file.write_text(file.read_text().replace('"step": 4', '"step": 3'))


def other_json(file: Path) -> None:
    file.write_text("[4]")


def other_bytes(file: Path) -> None:
    file.write_bytes(b"\xff" * 9)


@pytest.mark.parametrize(
    ("name", "damage", "why"),
    [
        ("__0_0.distcp", halve, "ValueError: __0_0.distcp has "),
        ("__0_0.distcp", zero, "__0_0.distcp has the SHA-256 "),
        ("__0_0.distcp", flip_a_bit, "__0_0.distcp has the SHA-256 "),
        ("__0_0.distcp", Path.unlink, "FileNotFoundError: "),
        (".metadata", halve, "ValueError: .metadata has "),
        (".metadata", zero, ".metadata has the SHA-256 "),
        ("progress.json", empty, "ValueError: progress.json is damaged"),
        ("progress.json", halve, "ValueError: progress.json is damaged"),
        ("progress.json", zero, "ValueError: progress.json is damaged"),
        ("progress.json", Path.unlink, "FileNotFoundError: "),
        ("progress.json", name_another_step, "ValueError: progress.json is damaged: it has not"),
        ("progress.json", other_json, "ValueError: progress.json is damaged: it has not"),
        ("progress.json", other_bytes, "ValueError: progress.json is damaged"),
    ],
)
def test_a_damaged_newest_one_falls_back_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage, why: str
) -> None:
    folder, states = folder_with(tmp_path, 2, 4)
    damage(folder.path / "step_000000004" / name)
    module, optimiser = trained(1, seed=1)
    assert folder.resume(module, optimiser) == Progress(2)
    assert_same(whole_state(module, optimiser), states[2])
    (warning,) = warned(caplog)
    assert f"{folder.path}/step_000000004 cannot be used ({why}" in warning

    # It stays while training is behind it, and gives way when training comes to its step.
    folder.save(*trained(3), Progress(3))
    folder.wait()
    assert names_in(folder) == ["step_000000002", "step_000000003", "step_000000004"]
    folder.save(*trained(4), Progress(4))
    assert folder.resume(module, optimiser) == Progress(4)
    assert_same(whole_state(module, optimiser), states[4])
    assert names_in(folder) == ["step_000000003", "step_000000004"]


@pytest.mark.parametrize("num_steps", [0, 1])
def test_where_none_can_be_used_everything_is_as_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, num_steps: int
) -> None:
    folder, _ = folder_with(tmp_path, 2, 4)
    for file in folder.path.glob("*/*.distcp"):
        # Its first tensors can be read.
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    module, optimiser = trained(num_steps, seed=1)
    before = whole_state(module, optimiser)
    assert folder.resume(module, optimiser) is None
    assert_same(whole_state(module, optimiser), before)
    assert [warning.split()[0] for warning in warned(caplog)] == [
        str(folder.path / "step_000000004"),
        str(folder.path / "step_000000002"),
        "no",
    ]


def test_nothing_is_said_where_there_is_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module, optimiser = trained(0)
    assert CheckpointFolder(tmp_path, "identity").resume(module, optimiser) is None
    assert not warned(caplog)


class Other(nn.Module):
    """Has the names of `Wrapped`, and one shape that is another."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build_module().model
        self.model.scale = nn.Parameter(torch.rand(4))


def test_a_state_of_another_model_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    for module, message in (
        (Other(), r"scale is \(3,\) there, and \(4,\) here"),
        (nn.Linear(2, 2), "is written there, and is no part of this training"),
        (nn.ModuleDict({"model": build_module(), "more": nn.Linear(2, 2)}), "no part of this"),
    ):
        save_state(path, *trained(2), Progress(2))
        optimiser = build_optimiser(module)
        before = whole_state(module, optimiser)
        with pytest.raises(ValueError, match=message):
            load_state(path, module, optimiser)
        assert_same(whole_state(module, optimiser), before)


def test_a_state_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    module, optimiser = trained(2)
    save_state(path, module, optimiser, Progress(2))
    module.more = nn.Parameter(torch.rand(2))
    with pytest.raises(ValueError, match=r"model\.more is part of this training"):
        load_state(path, module, optimiser)


def test_a_truncated_state_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_state(path, *trained(2), Progress(2))
    halve(path)
    module, optimiser = trained(1, seed=1)
    before = whole_state(module, optimiser)
    with pytest.raises(SafetensorError):
        load_state(path, module, optimiser)
    assert_same(whole_state(module, optimiser), before)


def test_another_training_has_another_folder(tmp_path: Path) -> None:
    module, optimiser = trained(1)
    first = CheckpointFolder(tmp_path, "a" * 64)
    first.save(module, optimiser, Progress(1))
    first.wait()
    assert first.path == tmp_path / ("a" * 16)
    assert CheckpointFolder(tmp_path, "b" * 64).resume(module, optimiser) is None
    assert CheckpointFolder(tmp_path, "a" * 64).resume(module, optimiser) is not None


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = folder_with(tmp_path, 2)
    goes_on, write = threading.Event(), FileSystemWriter.write_data

    def write_later(self, plan, planner):
        assert goes_on.wait(60)
        return write(self, plan, planner)

    monkeypatch.setattr(FileSystemWriter, "write_data", write_later)
    module, optimiser = trained(4)
    expected = whole_state(module, optimiser)
    history = [{"step": 4, "loss": 1.0}]
    folder.save(module, optimiser, Progress(4, history=history))
    # All of this happens before anything is written.
    make_steps(module, optimiser, 3)
    history.append({"step": 7, "loss": 0.5})
    with torch.no_grad():
        module.model.offset.zero_()
    assert not (folder.path / "step_000000004").exists()
    goes_on.set()
    folder.wait()
    assert (folder.path / "step_000000004").exists()

    other, other_optimiser = trained(0)
    assert folder.resume(other, other_optimiser) == Progress(4, history=history[:1])
    assert_same(whole_state(other, other_optimiser), expected)


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Make writing longer files fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("size", [0, 4096])
def test_a_checkpoint_that_cannot_be_written_is_said_and_leaves_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    folder, states = folder_with(tmp_path, 2)
    with files_of_at_most(size):
        folder.save(*trained(4), Progress(4))
        folder.wait()
    (warning,) = warned(caplog)
    assert f"{folder.path}/step_000000004 could not be written (" in warning
    assert "File too large" in warning
    assert names_in(folder) == ["step_000000002"]
    module, optimiser = trained(0)
    assert folder.resume(module, optimiser) == Progress(2)
    assert_same(whole_state(module, optimiser), states[2])
    # With room again the next one is written.
    folder.save(*trained(6), Progress(6))
    folder.wait()
    assert names_in(folder) == ["step_000000002", "step_000000006"]


def test_a_kill_between_any_two_changes_of_the_disk_leaves_a_usable_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, states = folder_with(tmp_path / "kept", 1, 2, 3)
    found: list[Path] = []
    is_copying = False

    def photographed(name: str) -> None:
        change = getattr(os, name)

        def changed(*arguments, **settings):
            nonlocal is_copying
            if not is_copying:
                is_copying = True
                found.append(tmp_path / f"photograph_{len(found)}")
                shutil.copytree(folder.path.parent, found[-1])
                is_copying = False
            return change(*arguments, **settings)

        monkeypatch.setattr(os, name, changed)

    with monkeypatch.context():
        for name in ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir"):
            photographed(name)
        folder.save(*trained(4), Progress(4))
        folder.wait()
        folder.save(*trained(4), Progress(4, seconds=1.0))
        folder.wait()
    assert len(found) > 20
    steps = []
    for photograph in found:
        module, optimiser = trained(0)
        progress = CheckpointFolder(photograph, "identity").resume(module, optimiser)
        assert progress is not None
        steps.append(progress.step)
        expected = states[3] if progress.step == 3 else whole_state(*trained(4))
        assert_same(whole_state(module, optimiser), expected)
    assert set(steps) == {3, 4} and steps == sorted(steps)


KILLED = """
import os, signal, sys
from pathlib import Path
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.progress import Progress
from tests.training.setup_checkpoints import trained

folder = CheckpointFolder(Path(sys.argv[1]), "identity")
folder.save(*trained(2), Progress(2))
folder.wait()
write = FileSystemWriter.write_data
def write_and_die(self, plan, planner):
    write(self, plan, planner)
    os.kill(os.getpid(), signal.SIGKILL)
FileSystemWriter.write_data = write_and_die
folder.save(*trained(4), Progress(4))
folder.wait()
"""


def test_a_process_killed_while_it_writes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=REPOSITORY)
    assert killed.returncode == -signal.SIGKILL
    folder = CheckpointFolder(tmp_path, "identity")
    assert names_in(folder) == ["step_000000002", "step_000000004.partial"]
    module, optimiser = trained(0)
    assert folder.resume(module, optimiser) == Progress(2)
    assert not warned(caplog)
    assert_same(whole_state(module, optimiser), whole_state(*trained(2)))
    folder.save(*trained(4), Progress(4))
    folder.wait()
    assert names_in(folder) == ["step_000000002", "step_000000004"]
