"""The training stages in one process: what they leave, what they track, and starting again."""

import dataclasses
import hashlib
import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from implicit_models.cost.meter import Meter
from implicit_models.parameters import ParameterError, read_section
from implicit_models.problems.word_problem import parameters as word_problem
from implicit_models.problems.word_problem.data.splits import DataError
from implicit_models.problems.word_problem.data.writing import write_splits
from stages.training import train_baseline, train_bounded, train_free
from stages.training.segment import _energy
from tests.stages.small_training import (
    BASELINE,
    RUN,
    Recorder,
    cut_short,
    lengthen_baseline,
    replace_in_parameters,
    write_project,
)

RESULTS = Path("results", "runs", RUN)


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    write_project(tmp_path)


@pytest.fixture
def run(monkeypatch):
    def run(module, name=RUN):
        recorder = Recorder()
        monkeypatch.setattr("stages.training.segment.open_run", lambda *_, **__: recorder)
        module.main(name)
        return recorder

    return run


def record(*files):
    """Write what DVC writes once a stage has ended."""
    digests = [hashlib.md5(file.read_bytes()).hexdigest() for file in files]
    Path("dvc.lock").write_text("".join(f"    md5: {digest}\n" for digest in digests))


def test_training_again_leaves_the_same_model_and_state(run):
    run(train_bounded)
    folder = Path("models", RUN, "bounded")
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    record(RESULTS / "train_bounded.json")
    times = json.loads((RESULTS / "train_bounded.json").read_text())["train_seconds"]
    run(train_bounded)
    assert json.loads((RESULTS / "train_bounded.json").read_text())["train_seconds"] != times
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert "training_state.safetensors" in first


def test_entries_are_tracked_under_the_same_names_with_all_their_costs(run):
    bounded, free = run(train_bounded), run(train_free)
    explicit = run(train_baseline, BASELINE)
    files = [
        json.loads((RESULTS / f"train_{phase}.json").read_text()) for phase in ("bounded", "free")
    ]
    whole, phase = free.totals("entry"), free.totals("stage")
    assert set(explicit.totals("entry")) == set(whole)
    assert not [level for level, _, _ in bounded.calls if level == "entry"]  # it goes on
    assert set(phase) == set(bounded.totals("stage"))
    of_curves = {"phase.tokens", "phase.flops"}
    assert set(phase) == of_curves | {name.replace("train.", "phase.") for name in whole}
    for name, tracked in (("train_seconds", "seconds"), ("num_training_steps", "steps")):
        assert phase[f"phase.{tracked}"] == files[1][name]
        assert whole[f"train.{tracked}"] == files[0][name] + files[1][name]
    num_tokens = files[0]["num_tokens"] + files[1]["num_tokens"]
    assert whole["train.tokens_per_second"] == pytest.approx(num_tokens / whole["train.seconds"])
    *_, last = (metrics for level, _, metrics in free.calls if level == "both")
    assert last["train.tokens"] == num_tokens
    assert last["train.flops"] == files[0]["training_flops"] + files[1]["training_flops"]

    inherited = [(step, metrics) for level, step, metrics in free.calls if level == "new entry"]
    tracked = [(step, m) for level, step, m in bounded.calls if level == "both"][: len(inherited)]
    assert [step for step, _ in inherited] == [1, 2, 3]
    assert inherited == [
        (step, {name: pytest.approx(value) for name, value in metrics.items()})
        for step, metrics in tracked
    ]


def test_the_free_phase_needs_no_results_of_the_bounded_one(run, caplog):
    run(train_bounded)
    (RESULTS / "train_bounded_history.csv").unlink()
    free = run(train_free)
    assert "train_bounded_history.csv" in caplog.text
    assert "phase.seconds" in free.totals("stage")
    assert list(free.totals("entry")) == ["num_parameters"]


def test_an_entrys_run_has_the_headline_and_its_stages_the_rest(run):
    recorder = run(train_bounded)
    shared, own = (
        {name for each, _, metrics in recorder.calls if each == level for name in metrics}
        for level in ("both", "stage")
    )
    assert shared == {
        *("train.loss", "train.accuracy", "train.self_iterations", "train.tokens", "train.flops"),
        *("validation.loss", "validation.accuracy"),
    }
    assert {"train.gradient_norm", "validation.accuracy_last_10", "phase.seconds"} <= own
    assert not shared & own
    names = shared | own
    beginnings = {name.partition(".")[0] for name in names}
    assert beginnings == {"train", "validation", "phase", "num_parameters"}


def test_an_ended_training_is_kept_until_it_is_recorded(run, caplog):
    first = run(train_baseline, BASELINE)
    weights = Path("models", BASELINE, "final", "model.safetensors")
    expected = weights.read_bytes()
    for file in (weights, Path("results", "runs", BASELINE, "train_baseline.json")):
        file.unlink()
    again = run(train_baseline, BASELINE)
    assert "continuing from checkpoints" in caplog.text
    assert weights.read_bytes() == expected
    for recorder in (first, again):
        assert [step for level, step, _ in recorder.calls if level == "both"] == [1, 2]

    caplog.clear()
    record(Path("results", "runs", BASELINE, "train_baseline.json"))
    run(train_baseline, BASELINE)
    assert "continuing" not in caplog.text
    assert weights.read_bytes() == expected


def test_checkpoints_of_another_training_stay_and_are_named(run, caplog):
    run(train_baseline, BASELINE)
    (left,) = Path("checkpoints", BASELINE, "train_baseline").iterdir()
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("clip_norm: 1.0", "clip_norm: 0.5"))
    run(train_baseline, BASELINE)
    assert left.is_dir()
    assert f"rm -r {left}" in caplog.text


def test_data_that_changed_since_a_training_stopped_is_named(run, monkeypatch):
    lengthen_baseline()
    cut_short(monkeypatch, train_baseline)
    inputs = Path("data", "s3", "train", "inputs.npy")
    content = bytearray(inputs.read_bytes())
    content[-7] ^= 1
    inputs.write_bytes(content)
    with pytest.raises(DataError, match=f"{inputs}: the content has changed"):
        run(train_baseline, BASELINE)


def test_too_little_data_for_one_batch(run, monkeypatch):
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("batch_size: 64", "batch_size: 512"))
    key = f"baselines.{BASELINE}.optimisation.batch_size"
    with pytest.raises(ParameterError, match=f"^{key} = 512 is not.*num_sequences, 256$"):
        run(train_baseline, BASELINE)
    # As with a text, whose sequences are known once it is prepared.
    monkeypatch.setattr(word_problem, "num_sequences", lambda *_: None)
    with pytest.raises(ParameterError, match=f"^{key} = 512 is not.* 256, .* of data/s3: add"):
        run(train_baseline, BASELINE)


def test_a_batch_of_tokens_is_a_number_of_sequences(run):
    text = Path("params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("batch_size: 64", "batch_tokens: 768"))
    history = run(train_baseline, BASELINE).calls
    named = "train.sequences"
    assert [metrics[named] for _, _, metrics in history if named in metrics] == [64, 128]
    Path("params.yaml").write_text(text.replace("batch_size: 64", "batch_tokens: 770"))
    with pytest.raises(ParameterError, match="batch_tokens = 770 is not allowed.*multiple.* 12"):
        run(train_baseline, BASELINE)


def test_trainings_of_one_entry_on_other_data_are_another_group_of_seeds(monkeypatch):
    groups, seeds, parameters = [], [], []

    def open_run(*given, **settings):
        groups.append(settings["group"])
        seeds.append(settings["entry"]["seed"])
        parameters.append(given[3]["data"])
        return Recorder()

    monkeypatch.setattr("stages.training.segment.open_run", open_run)
    train_baseline.main(BASELINE)
    text = Path("params.yaml").read_text()
    before, _, after = text.partition(f"  {BASELINE}:")
    Path("params.yaml").write_text(
        before + f"  {BASELINE}:" + after.replace("seed: 0", "seed: 1", 1)
    )
    train_baseline.main(BASELINE)
    shutil.rmtree("data")
    replace_in_parameters("group: S3", "group: D4")
    data = read_section("datasets.s3", word_problem.WordProblemParameters)
    write_splits(data, Path("data", "s3"))
    train_baseline.main(BASELINE)
    assert groups[0] == groups[1] != groups[2] and seeds == [0, 1, 1]
    assert [each.group for each in parameters] == ["S3", "S3", "D4"]


@pytest.mark.parametrize(
    ("joules", "device", "others", "expected"),
    [
        (None, "cpu", [], None),
        (5.0, "cpu", [], 5.0),
        (5.0, "cpu", [5.0], None),  # both are on this machine, or on two
        (5.0, "cuda", [2.0, 1.0], 8.0),
        (5.0, "cuda", [None], None),
    ],
)
def test_energy_is_that_of_all_processes(joules, device, others, expected):
    def total(*own):
        theirs = [(float(each is not None), each or 0.0) for each in others]
        return [sum(each) for each in zip(own, *theirs, strict=True)]

    processes = SimpleNamespace(device=torch.device(device), size=1 + len(others), total=total)
    assert _energy(joules, processes) == expected


def test_a_training_that_was_interrupted_does_not_know_its_energy(run, monkeypatch):
    monkeypatch.setattr("stages.training.segment.Meter", _Metered)
    run(train_baseline, BASELINE)
    metrics = Path("results", "runs", BASELINE, "train_baseline.json")
    assert json.loads(metrics.read_text())["energy_joules"] == 7.0
    run(train_baseline, BASELINE)  # from the last checkpoint of the one before
    assert json.loads(metrics.read_text())["energy_joules"] is None


class _Metered(Meter):
    """A meter of a machine that tells its energy."""

    @property
    def measurement(self):
        return dataclasses.replace(super().measurement, energy_joules=7.0)
