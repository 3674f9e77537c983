"""Several processes train as one does, stop and go on together, and change their number."""

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

from implicit_models.language_models.placement import DeviceError
from implicit_models.training.distributed import (
    CHECKPOINTING,
    MICRO_BATCH,
    PARALLELISM,
    Execution,
    Processes,
    open_execution,
)
from implicit_models.training.rendezvous import agree
from tests import warm_python
from tests.training.distributed_worker import EVERY, FEW, SEARCHING, STARTS, Job, do

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def torchrun(start: str, output: Path, num_processes: int, *options: str) -> tuple[int, str]:
    """Run a start of the worker; return its exit status and what it has said."""
    output.mkdir(exist_ok=True)
    command = ["python", "-m", "torch.distributed.run", "--standalone", *options]
    command += [f"--nproc-per-node={num_processes}", "-m", "tests.training.distributed_worker"]
    environment = {
        "OMP_NUM_THREADS": "1",
        "IMPLICIT_MODELS_DEVICE": "cpu",
        "PATH": warm_python.before(os.environ["PATH"]),
    }
    done = subprocess.run(
        [*command, start, output],
        cwd=ROOT,
        env=os.environ | warm_python.for_torchrun() | environment,
        capture_output=True,
        timeout=400,
    )
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    """What one process logs, without torchrun."""
    return do(Job("alone", "ddp"), tmp_path_factory.mktemp("alone"), Execution())


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> tuple[Path, int, str]:
    """What two processes leave that are asked to stop in the end."""
    output = tmp_path_factory.mktemp("together")
    return output, *torchrun("together", output, 2)


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> tuple[Path, int, str]:
    """What two processes leave of which one is killed, twice."""
    output = tmp_path_factory.mktemp("killed")
    return output, *torchrun("killed", output, 2, "--max-restarts=2")


def found_in(output: Path, job: str, text: str) -> dict:
    """Read what a job has left."""
    path = output / f"{job}.json"
    assert path.exists(), text[-6000:]
    return json.loads(path.read_text())


SAME = {
    "loss", "accuracy", "accuracy_last_10", "gradient_norm", "learning_rate", "batch_tokens",
    "self_iterations", "token_evaluations", "residual", "tokens", "sequences", "training_flops",
    "validation_loss", "validation_accuracy", "validation_self_iterations", "epoch",
    "share_carried",
}  # fmt: skip


def assert_same_training(found: dict, expected: dict, tolerance: float = 1e-6) -> None:
    for case, one in expected.items():
        several = found[case]["history"]
        assert [row["step"] for row in several] == [row["step"] for row in one["history"]]
        for ours, theirs in zip(several, one["history"], strict=True):
            assert ours.keys() == theirs.keys()
            for name in SAME & theirs.keys():
                close = pytest.approx(theirs[name], rel=tolerance * 10, abs=tolerance)
                assert ours[name] == close, (case, ours["step"], name)


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_two_processes_train_as_one_does(alone, together, parallelism):
    output, _, text = together
    assert_same_training(found_in(output, parallelism, text), alone)


def test_gradients_that_are_added_up_are_those_of_the_whole_batch(alone, together, tmp_path):
    job = Job("alone", "ddp", FEW, execution={"micro_batch": 3})
    assert_same_training(do(job, tmp_path, Execution()), expected_of(FEW, alone))
    output, _, text = together
    assert_same_training(found_in(output, "added", text), alone)


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_a_killed_process_is_started_again(alone, killed, parallelism):
    """One of two is killed after step 8: torchrun starts both again, from a checkpoint."""
    output, status, text = killed
    found = found_in(output, parallelism, text)
    assert status == 0
    assert (output / f"{parallelism}_SIGKILL").exists()
    assert f"continuing from {output / parallelism}" in text
    expected = expected_of(FEW, alone)
    assert_same_training(found, expected)
    # Of the second start. That of step 6 may not have been written when the process was killed.
    assert min(map(int, found[next(iter(expected))]["drawn"])) in (EVERY * 8, 2 * EVERY * 8)


def test_another_number_of_processes_goes_on(alone, killed, tmp_path):
    """One, and four, go on from copies of the checkpoints that two have left."""
    left, _, text = killed
    for copy in (tmp_path / "one", tmp_path / "four"):
        for job in STARTS["afterwards"]:
            found_in(left, job.name, text)
            shutil.copytree(left / job.name, copy / job.name)
        for newest in copy.glob("*/*/step_000000009"):
            shutil.rmtree(newest)
    for job in STARTS["afterwards"]:
        assert_goes_on(do(job, tmp_path / "one", Execution()), alone)
    status, text = torchrun("afterwards", tmp_path / "four", 4)
    assert status == 0, text[-6000:]
    for job in STARTS["afterwards"]:
        assert_goes_on(found_in(tmp_path / "four", job.name, text), alone)


def assert_goes_on(found: dict, alone: dict) -> None:
    """Hold the sequences that were drawn, and what came out, against those of a whole training."""
    expected = expected_of(FEW, alone)
    assert_same_training(found, expected)
    for case, whole in expected.items():
        drawn = {int(position): rows for position, rows in found[case]["drawn"].items()}
        assert min(drawn) == 2 * EVERY * 8
        for position, rows in drawn.items():
            assert rows == whole["drawn"][position]


def expected_of(cases: tuple[tuple[str, str], ...], alone: dict) -> dict:
    return {f"{family}/{phase}": alone[f"{family}/{phase}"] for family, phase in cases}


def test_when_one_is_asked_to_stop_all_keep_a_checkpoint_and_go_on_later(alone, together):
    output, status, text = together
    assert status != 0
    assert "stopped after step 8 by SIGTERM; the checkpoint is kept" in text, text[-6000:]
    assert [path.name for path in output.glob("asked/*/step_*8")] == ["step_000000008"]
    again = do(Job("asked", "ddp", SEARCHING), output, Execution())
    assert_same_training(again, expected_of(SEARCHING, alone))
    assert min(again["mamba2/free"]["drawn"]) == 8 * 8


def test_processes_that_are_started_again_agree_on_a_new_name() -> None:
    """The store keeps what those before them have left, and one of these never got through."""
    store = HashStore()
    store.set("asks/1", "of a process that is gone")
    store.set("asks/2", "of another")
    names = []
    for _ in range(3):
        with ThreadPoolExecutor(3) as threads:
            starts = [threads.submit(agree, store, rank, 3) for rank in (2, 0, 1)]
            names.append({start.result(60) for start in starts})
    assert [len(each) for each in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3


def test_numbers_are_summed_over_processes(tmp_path):
    one = Processes()
    assert one.total(1.5, torch.tensor(2)) == [1.5, 2.0]
    assert one.gathered("x") == ["x"]
    assert one.from_main("x") == "x"


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        (PARALLELISM, "zero", "ddp, fsdp"),
        (CHECKPOINTING, "all", "none, iterations, blocks"),
        (MICRO_BATCH, "0", "a number of sequences"),
        (MICRO_BATCH, "few", "a number of sequences"),
    ],
)
def test_variables_that_are_none_of_what_is_allowed(monkeypatch, variable, value, allowed):
    monkeypatch.setenv(variable, value)
    match = f"{variable} is '{value}'; allowed (are|is) {allowed}"
    with pytest.raises(DeviceError, match=match), open_execution():
        pass


@pytest.mark.parametrize(
    ("variables", "match"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; allowed is a whole number; torchrun sets"),
        ({"WORLD_SIZE": "2"}, "RANK is None; allowed is a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, "RANK is '-1'; allowed is a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is 2; allowed is less than WORLD_SIZE, 2"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_PORT is None; allowed is a whole number"),
    ],
)
def test_what_torchrun_sets_is_read_strictly(monkeypatch, variables, match):
    monkeypatch.setenv("IMPLICIT_MODELS_DEVICE", "cpu")
    for name in ("WORLD_SIZE", "RANK", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DeviceError, match=match), open_execution():
        pass


def test_how_to_compute_is_read_from_the_environment(monkeypatch):
    given = {PARALLELISM: "fsdp", MICRO_BATCH: "2", CHECKPOINTING: "iterations"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IMPLICIT_MODELS_DEVICE", "cpu")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with open_execution() as execution:
        assert execution == Execution(Processes(), micro_batch=2, checkpointing="iterations")
