"""Several processes train as one does, stop and go on together, and change their number."""

import json
import os
import subprocess
import sys
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
from tests.training.distributed_worker import CASES, run

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def torchrun(
    output: Path,
    num_processes: int,
    *settings: str,
    options: tuple[str, ...] = (),
    **variables: str,
) -> subprocess.Popen:
    output.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options]
    command += [f"--nproc-per-node={num_processes}", "-m", "tests.training.distributed_worker"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "IMPLICIT_MODELS_DEVICE": "cpu"}
    with (output / "log.txt").open("w") as log:
        return subprocess.Popen(
            [*command, str(output), *settings],
            cwd=ROOT,
            env={**environment, **variables},
            stdout=log,
            stderr=log,
        )


def logs(process: subprocess.Popen, output: Path) -> dict:
    assert process.wait(240) == 0, (output / "log.txt").read_text()[-4000:]
    return json.loads((output / "logs.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    """What one process logs, without torchrun."""
    folder = tmp_path_factory.mktemp("alone")
    found = {}
    for family, phase in CASES:
        progress, drawn = run(family, phase, folder, Execution())
        found[f"{family}/{phase}"] = {"history": progress.history, "drawn": drawn}
    return found


SAME = {
    "loss", "accuracy", "accuracy_last_10", "gradient_norm", "learning_rate", "batch_tokens",
    "self_iterations", "token_evaluations", "residual", "tokens", "sequences", "training_flops",
    "validation_loss", "validation_accuracy", "validation_self_iterations", "epoch",
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
def test_two_processes_train_as_one_does(alone, parallelism, tmp_path):
    output = tmp_path / "two"
    process = torchrun(output, 2, IMPLICIT_MODELS_PARALLELISM=parallelism)
    assert_same_training(logs(process, output), alone)


def test_gradients_that_are_added_up_are_those_of_the_whole_batch(alone, tmp_path):
    found = {}
    for family, phase in CASES:
        progress, _ = run(family, phase, tmp_path, Execution(micro_batch=3))
        found[f"{family}/{phase}"] = {"history": progress.history}
    assert_same_training(found, alone)
    output = tmp_path / "two"
    variables = {PARALLELISM: "fsdp", MICRO_BATCH: "2", CHECKPOINTING: "iterations"}
    assert_same_training(logs(torchrun(output, 2, **variables), output), alone)


@pytest.mark.parametrize(("parallelism", "afterwards"), [("ddp", 1), ("fsdp", 4)])
def test_a_killed_process_and_a_change_of_their_number(alone, parallelism, afterwards, tmp_path):
    """One of two is killed after step 12: torchrun starts both again, from a checkpoint.

    Afterwards one, or four, go on from copies of their checkpoints.
    """
    cases = [f"{family}/{phase}" for family, phase in CASES if phase in ("explicit", "free")]
    output = tmp_path / "two"
    process = torchrun(
        output,
        2,
        f"cases={','.join(cases)}",
        "SIGKILL=12",
        options=("--max-restarts=1",),
        IMPLICIT_MODELS_PARALLELISM=parallelism,
    )
    found = logs(process, output)
    assert (output / "SIGKILL").exists()
    assert "continuing from" in (output / "log.txt").read_text()
    expected = {case: alone[case] for case in cases}
    assert_same_training(found, expected)
    first = cases[0]
    # Of the second start. That of step 10 may not have been written when the process was killed.
    assert min(map(int, found[first]["drawn"])) in (5 * 8, 10 * 8)
    copy = tmp_path / "copy"
    copy.mkdir()
    subprocess.run(["cp", "-r", output / "checkpoints", copy / "checkpoints"], check=True)
    for newest in (copy / "checkpoints").glob("*/step_000000020"):
        subprocess.run(["rm", "-r", newest], check=True)
    process = torchrun(
        copy, afterwards, f"cases={','.join(cases)}", IMPLICIT_MODELS_PARALLELISM="ddp"
    )
    again = logs(process, copy)
    assert_same_training(again, expected)
    for case in cases:
        positions = {int(key): rows for key, rows in again[case]["drawn"].items()}
        assert min(positions) in (10 * 8, 15 * 8)
        for position, rows in positions.items():
            assert rows == alone[case]["drawn"][position]


def test_when_one_is_asked_to_stop_all_keep_a_checkpoint_and_go_on_later(alone, tmp_path):
    output = tmp_path / "two"
    case = "mamba2/free"
    process = torchrun(output, 2, f"cases={case}", "SIGTERM=7")
    assert process.wait(120) != 0
    text = (output / "log.txt").read_text()
    assert "stopped after step 8 by SIGTERM; the checkpoint is kept" in text, text[-4000:]
    assert [path.name for path in (output / "checkpoints").glob("*/step_*8")] == ["step_000000008"]
    again = logs(torchrun(output, 2, f"cases={case}"), output)
    assert_same_training(again, {case: alone[case]})
    assert min(map(int, again[case]["drawn"])) == 8 * 8


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
