"""A file that is not what was written ends a stage that is run by hand, too, in one line."""

from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.answers import ask
from tests.fuzz.damage_cases import restore
from tests.stages.in_process import send_nothing

RUN, BASELINE = "s3_implicit_mamba2", "s3_lstm"
EVALUATE, SWEEP = "evaluation.evaluate_benchmarks", "evaluation.sweep_test_time_compute"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning"),  # DVC's
]


@pytest.fixture(autouse=True)
def fresh(tiny_project, tmp_path, monkeypatch) -> Path:
    restore(tiny_project, tmp_path)
    monkeypatch.chdir(tmp_path)
    send_nothing(monkeypatch)
    return tmp_path


def flip(path: Path, place: float = 0.9) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("stage", "name"), [(EVALUATE, RUN), (EVALUATE, BASELINE), (SWEEP, RUN)])
def test_other_test_data_of_the_same_shape(stage, name):
    path = Path("data/s3/test_L8/labels.npy")
    np.save(path, np.zeros_like(np.load(path)))
    found = ask(stage, name)
    assert found.kind == "refused"
    assert f"{path}: the content has changed; `dvc repro prepare@s3` writes it" in found.said


@pytest.mark.parametrize(
    ("file", "stage"),
    [
        (f"models/{RUN}/bounded/training_state.safetensors", "training.train_free"),
        (f"models/{RUN}/bounded/checksums.json", "training.train_free"),
        (f"models/{RUN}/final/model.safetensors", EVALUATE),
        (f"models/{RUN}/final/config.json", SWEEP),
        (f"results/runs/{RUN}/evaluation.json", "report"),
        (f"results/runs/{RUN}/train_free_history.csv", "report"),
    ],
)
def test_one_flipped_bit(file, stage):
    flip(Path(file))
    found = ask(stage, RUN)
    assert found.kind == "refused"
    assert file in found.said


def test_data_in_which_a_stage_finds_nothing_wrong_is_what_was_written():
    for stage, name in (
        (EVALUATE, RUN),
        (SWEEP, RUN),
        ("training.train_free", RUN),
        ("report", ""),
    ):
        assert ask(stage, name).kind == "done"
