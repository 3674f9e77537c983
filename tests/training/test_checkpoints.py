"""Checkpoints: atomic, complete, bound to one training, and forgiving of a broken newest file."""

import logging
from pathlib import Path

import pytest
import torch

from implicit_models.parameters import source_digest
from implicit_models.training.checkpoints import CheckpointFolder, Progress
from tests.training.setup_training import run


def states(model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    tensors = list(model.state_dict().values())
    for parameter in model.parameters():
        tensors += [value for _, value in sorted(optimiser.state[parameter].items())]
    return tensors


def test_everything_comes_back(tmp_path: Path) -> None:
    model, optimiser, _, _ = run(tmp_path / "training")
    folder = CheckpointFolder(tmp_path, "identity")
    torch.manual_seed(1234)
    folder.save(model, optimiser, Progress(7, 42, 1e9, 1.5, [{"step": 6, "loss": 0.25}]))
    saved = [tensor.clone() for tensor in states(model, optimiser)]
    drawn = torch.rand(3)

    other, other_optimiser, _, _ = run(tmp_path / "other", stop_after=6)
    progress = folder.resume(other, other_optimiser)
    assert progress == Progress(7, 42, 1e9, 1.5, [{"step": 6, "loss": 0.25}])
    for before, after in zip(saved, states(other, other_optimiser), strict=True):
        assert torch.equal(before, after)
    assert torch.equal(torch.rand(3), drawn)


def test_only_the_newest_two_are_kept_and_nothing_partial(tmp_path: Path) -> None:
    model, optimiser, _, _ = run(tmp_path / "training")
    folder = CheckpointFolder(tmp_path / "kept", "identity")
    for step in (3, 6, 9, 12):
        folder.save(model, optimiser, Progress(step))
    names = sorted(file.name for file in folder.path.iterdir())
    assert names == ["step_000000009.safetensors", "step_000000012.safetensors"]


def test_a_truncated_newest_file_falls_back_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimiser, _, _ = run(tmp_path / "training")
    folder = CheckpointFolder(tmp_path / "kept", "identity")
    for step in (3, 6):
        folder.save(model, optimiser, Progress(step))
    newest = folder.path / "step_000000006.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    with caplog.at_level(logging.WARNING):
        progress = folder.resume(model, optimiser)
    assert progress is not None and progress.step == 3
    assert "step_000000006.safetensors cannot be used" in caplog.text


def test_another_training_has_another_folder(tmp_path: Path) -> None:
    model, optimiser, _, _ = run(tmp_path / "training")
    CheckpointFolder(tmp_path / "kept", "a" * 64).save(model, optimiser, Progress(3))
    assert CheckpointFolder(tmp_path / "kept", "b" * 64).resume(model, optimiser) is None
    assert CheckpointFolder(tmp_path / "kept", "a" * 64).resume(model, optimiser) is not None


def test_source_digest_notices_code_and_nothing_else(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("x = 1\n")
    before = source_digest([package])
    (package / "notes.txt").write_text("hello")
    assert source_digest([package]) == before
    (package / "code.py").write_text("x = 2\n")
    assert source_digest([package]) != before
