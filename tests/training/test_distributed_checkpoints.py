"""Checkpoints of several processes: any number and either parallelism reads what another wrote."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

from implicit_models.training.checkpoints import CheckpointFolder
from implicit_models.training.progress import Progress
from implicit_models.training.state_file import save_state
from tests import warm_python
from tests.training.setup_checkpoints import assert_same, make_steps, trained, whole_state

REPOSITORY = Path(__file__).parents[2]


def torchrun(num_processes: int, folder: Path, *tasks: str) -> tuple[int, str]:
    """Run tasks in some processes; return their exit status and what they printed."""
    worker = ("-m", "tests.training.checkpoint_worker", str(folder), *tasks)
    command = ["python", "-m", "torch.distributed.run", "--standalone"]
    warm = warm_python.for_torchrun() | {"PATH": warm_python.before(os.environ["PATH"])}
    finished = subprocess.run(
        [*command, f"--nproc-per-node={num_processes}", *worker],
        cwd=REPOSITORY,
        env=os.environ | warm | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return finished.returncode, finished.stderr[-8000:]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """Run two processes that load what one wrote, and then fail in every way."""
    folder = tmp_path_factory.mktemp("exchanged")
    module, optimiser = trained(3)
    torch.save(whole_state(module, optimiser), folder / "truth.pt")
    save_state(folder / "state.safetensors", module, optimiser, Progress(3))
    checkpoints = CheckpointFolder(folder, "alone")
    checkpoints.save(module, optimiser, Progress(3))
    checkpoints.wait()
    make_steps(module, optimiser, 2)
    torch.save(whole_state(module, optimiser), folder / "later.pt")
    empty, optimiser = trained(0, seed=2)
    torch.save(whole_state(empty, optimiser), folder / "empty.pt")
    save_state(folder / "empty.safetensors", empty, optimiser, Progress(0))
    return folder, *torchrun(2, folder, "exchange", "fail")


@pytest.fixture(scope="module")
def exchanged(two: tuple[Path, int, str]) -> Path:
    """Return the folder with what one process wrote and what two have made of it."""
    folder, _, said = two
    assert (folder / "exchange.done").exists(), said
    return folder


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_what_two_processes_wrote_loads_in_one(exchanged: Path, kind: str) -> None:
    module, optimiser = trained(1, seed=1)
    progress = CheckpointFolder(exchanged, kind).resume(module, optimiser)
    assert progress == Progress(3, history=[{"step": 3, "loss": 0.5}])
    assert_same(whole_state(module, optimiser), torch.load(exchanged / "truth.pt"))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_share_the_writing(exchanged: Path, kind: str) -> None:
    files = sorted((exchanged / kind / "step_000000003").glob("*.distcp"))
    assert [file.name for file in files] == ["__0_0.distcp", "__1_0.distcp"]
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) < 1.5 * min(sizes)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_state_file_is_the_same_bytes_whoever_writes_it(exchanged: Path, kind: str) -> None:
    one = (exchanged / "state.safetensors").read_bytes()
    assert (exchanged / f"{kind}.safetensors").read_bytes() == one
    one = (exchanged / "empty.safetensors").read_bytes()
    assert (exchanged / f"{kind}_empty.safetensors").read_bytes() == one


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_before_the_first_step(exchanged: Path, kind: str) -> None:
    module, optimiser = trained(1, seed=1)
    folder = CheckpointFolder(exchanged, f"{kind}_empty")
    assert folder.resume(module, optimiser) == Progress(0)
    assert not optimiser.state
    assert_same(whole_state(module, optimiser), torch.load(exchanged / "empty.pt"))


@pytest.mark.slow
def test_four_processes_load_what_two_wrote_and_one_what_four_wrote(exchanged: Path) -> None:
    status, said = torchrun(4, exchanged, "elsewhere")
    assert status == 0, said
    for written in ("ddp", "fsdp"):
        for kind in ("ddp", "fsdp"):
            module, optimiser = trained(1, seed=1)
            folder = CheckpointFolder(exchanged, f"{written}_{kind}_again")
            assert folder.resume(module, optimiser) == Progress(3)
            assert_same(whole_state(module, optimiser), torch.load(exchanged / "truth.pt"))


def test_all_processes_fail_together(
    two: tuple[Path, int, str], exchanged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, status, said = two
    assert (status, (exchanged / "fail.done").exists()) == (0, True), said
    # The last checkpoint was not waited for: it is there as a whole, or not at all.
    module, optimiser = trained(1, seed=1)
    if CheckpointFolder(exchanged, "left").resume(module, optimiser) is not None:
        assert_same(whole_state(module, optimiser), torch.load(exchanged / "truth.pt"))
    assert not [each for each in caplog.records if each.name.startswith("implicit_models")]
