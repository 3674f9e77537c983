"""A disk that is full under one folder: what stages say, and what is there when it has room."""

import contextlib
import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.answers import ask
from tests.fuzz.damage_cases import outputs, restore
from tests.repositories import clone
from tests.stages.in_process import send_nothing

RUN, BASELINE = "s3_implicit_mamba2", "s3_lstm"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning"),  # DVC's
]


@pytest.fixture
def fresh(tiny_project, tmp_path, monkeypatch) -> Path:
    """A copy to work in, without checkpoints."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    restore(tiny_project, folder)
    monkeypatch.chdir(folder)
    send_nothing(monkeypatch)
    shutil.rmtree("checkpoints")
    return folder


@contextlib.contextmanager
def full(folder: Path, kilobytes: int = 4) -> Iterator[None]:
    """Put a disk of its own under a folder, which has what the folder had, and hardly any room."""
    folder.mkdir(parents=True, exist_ok=True)
    away = folder.with_name(f"{folder.name}_away")
    shutil.copytree(folder, away)
    used = sum(path.stat().st_blocks // 2 for path in folder.rglob("*"))
    size = used + len(list(folder.rglob("*"))) * 4 + kilobytes
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", folder]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a disk of one's own can be mounted by root alone")
    try:
        shutil.copytree(away, folder, dirs_exist_ok=True)
        yield
        shutil.rmtree(away)
        shutil.copytree(folder, away)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
    shutil.rmtree(folder)
    away.rename(folder)


def stage_of(project: Path, name: str):
    from pipelines.dag import read_dag

    return read_dag(project)[name]


@pytest.mark.parametrize(
    ("folder", "module", "name", "kind"),
    [
        ("data", "prepare", "s3", "prepare"),
        ("models", "training.train_baseline", BASELINE, "train_baseline"),
        ("models", "training.train_bounded", RUN, "train_bounded"),
        ("results", "training.train_baseline", BASELINE, "train_baseline"),
        ("results", "evaluation.evaluate_benchmarks", RUN, "evaluate_benchmarks"),
        ("results", "evaluation.sweep_test_time_compute", RUN, "sweep_test_time_compute"),
        ("results", "report", "", "report"),
    ],
)
def test_the_file_is_named_and_again_it_goes_on(tiny_project, fresh, folder, module, name, kind):
    stage = stage_of(tiny_project, f"{kind}@{name}" if name else kind)
    for out in stage.outs:  # as DVC does
        path = fresh / out
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with full(fresh / folder):
        filler = fill(fresh / folder)
        found = ask(module, name)
        filler.unlink()
        assert found.kind == "refused", found.said
        assert "No space left on device" in found.said
        assert f"{folder}/" in found.said
    again = ask(module, name)
    assert again.kind == "done", again.said
    assert outputs(fresh, stage) == outputs(tiny_project, stage)


def fill(folder: Path) -> Path:
    """Take all the room that a disk has left, with a file that is returned."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(512)):
            pass
    return filler


@pytest.mark.parametrize(("folder", "kilobytes"), [("checkpoints", 48), (".tracking", 4)])
def test_training_goes_on(tiny_project, fresh, monkeypatch, folder, kilobytes):
    """With room for a training's small files, and for no checkpoint."""
    stage = stage_of(tiny_project, f"train_baseline@{BASELINE}")
    said: list[str] = []
    for logger in ("implicit_models.training.checkpoints", "implicit_models.tracking.recording"):
        monkeypatch.setattr(
            logging.getLogger(logger), "warning", lambda *a: said.append(a[0] % a[1:])
        )
    with full(fresh / folder, kilobytes):
        if folder == ".tracking":
            fill(fresh / folder)
        found = ask("training.train_baseline", BASELINE)
        assert found.kind == "done", found.said
        assert outputs(fresh, stage) == outputs(tiny_project, stage)
    assert any("No space left on device" in line for line in said), said


def test_without_room_for_checkpoints_nothing_is_begun(tiny_project, fresh):
    with full(fresh / "checkpoints"):
        fill(fresh / "checkpoints")
        found = ask("training.train_baseline", BASELINE)
        assert found.kind == "refused"
        assert "No space left on device" in found.said
        assert "checkpoints" in found.said


def test_without_room_for_the_cache_nothing_is_recorded_and_again_it_goes_on(tmp_path):
    repository = clone(tmp_path / "repository", "quick", "datasets.s3.train.num_sequences=1000")
    repository.run("dvc", "repro", "code")
    with full(repository.path / ".dvc" / "cache"):
        filler = fill(repository.path / ".dvc" / "cache")
        process = repository.start("dvc", "repro", "prepare@s3")
        said, _ = process.communicate()
        assert process.returncode
        assert "No space left on device" in said
        assert "prepare@s3" not in (repository.path / "dvc.lock").read_text()
        filler.unlink()
    repository.run("dvc", "repro", "prepare@s3")
    assert repository.run("dvc", "status", "prepare@s3").strip().endswith("up to date.")
