"""What of an entry goes into the tracking: its family, its group of seeds, aligned parameters."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from implicit_models.parameters import ParameterError
from implicit_models.tracking.digests import content_digest
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.recording import SpoolTracker
from stages.entries import read_models, seed_group
from stages.tracked import (
    open_run,
    open_test,
    track_data,
    track_model,
    track_phase,
    track_score,
    track_test,
)
from tests.tracking.killed import leave_as_killed

ROOT = Path(__file__).parents[2]
RUN, BASELINE = "s3_implicit_mamba2", "s3_mamba2_1_layer"


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    """The quick preset, composed once."""
    path = tmp_path_factory.mktemp("composed") / "params.yaml"
    command = [sys.executable, "scripts/compose.py", "quick", "--output", path]
    subprocess.run(command, cwd=ROOT, check=True)
    return path.read_text()


@pytest.fixture(autouse=True)
def parameters(tmp_path, monkeypatch, composed):
    """Work in a folder with the quick preset; returns what changes its parameters."""
    monkeypatch.chdir(tmp_path)
    for name in ("DVC_ROOT", "DVC_STAGE", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    unsent = functools.partial(open_tracker, send=False)
    monkeypatch.setattr("stages.tracked.open_tracker", unsent)
    Path("params.yaml").write_text(composed)

    def change(function):
        content = yaml.safe_load(Path("params.yaml").read_text())
        function(content)
        Path("params.yaml").write_text(yaml.safe_dump(content))

    return change


def opened(table, name, stage="train_baseline"):
    """Return the first event of a stage's spool."""
    with open_run(table, name, stage, {}) as tracker:
        assert isinstance(tracker, SpoolTracker)
    start = tracker.spool.start()
    assert start is not None
    return start


def events(tracker, kind):
    return [event for event, _ in tracker.spool.events() if event["event"] == kind]


def test_all_models_are_in_one_experiment_with_family_and_kind_as_tags(parameters):
    def add(content):
        lstm = {"family": "lstm", "d_model": 16, "hidden_size": 16, "num_layers": 1}
        content["baselines"]["s3_lstm"] = content["baselines"][BASELINE] | {"model": lstm}

    parameters(add)
    names = {RUN: "runs", **dict.fromkeys((BASELINE, "s3_lstm", "s3_gpt2"), "baselines")}
    runs = [opened(table, name) for name, table in names.items()]
    assert {run["experiment"] for run in runs} == {"implicit-models"}
    assert [(run["tags"]["family"], run["tags"]["kind"]) for run in runs] == [
        ("mamba2", "implicit"),
        ("mamba2", "explicit"),
        ("lstm", "recurrent"),
        ("huggingface", "explicit"),
    ]


def test_a_stage_joins_an_entry_in_the_experiment_where_that_was_begun(parameters):
    before = opened("runs", RUN, "train_bounded")
    with open_tracker(
        entry=RUN,
        stage="train_bounded",
        parameters={},
        digest=before["digest"],
        dataset="s3",
        experiment="implicit-models/mamba2",
        send=False,
    ):
        pass
    joined = opened("runs", RUN, "evaluate_benchmarks")
    assert joined["experiment"] == "implicit-models/mamba2"
    assert joined["parent"] != before["parent"]
    assert opened("runs", RUN, "train_bounded")["experiment"] == "implicit-models"


def test_a_test_with_settings_of_its_own_joins_the_training(parameters):
    before = opened("runs", RUN, "train_bounded")

    def test_otherwise(content):
        content["runs"][RUN] |= {"evaluation": {"batch_size": 2}, "sweep": {"batch_size": 2}}

    parameters(test_otherwise)
    joined = opened("runs", RUN, "evaluate_benchmarks")
    assert (joined["parent"], joined["digest"]) == (before["parent"], before["digest"])
    assert joined["parameters"] == before["parameters"]


def test_the_environment_names_another_experiment(monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert opened("runs", RUN)["experiment"] == "mine"


def test_a_model_from_elsewhere_has_a_family(parameters):
    def add(content):
        content["benchmarks"] = {"gpt2": {"model": "openai/gpt2", "tasks": "paper"}}

    parameters(add)
    run = opened("benchmarks", "gpt2", "evaluate_downstream_gpt2")
    assert run["experiment"] == "implicit-models"
    assert (run["tags"]["family"], run["tags"]["kind"]) == ("huggingface", "explicit")
    assert run["tags"]["dataset"] == "paper"


def test_a_model_without_a_family_is_a_line(parameters):
    def rename(content):
        model = content["runs"][RUN]["model"]
        model["gamily"] = model.pop("family")

    parameters(rename)
    with pytest.raises(ParameterError, match=f"runs.{RUN}.model.gamily = 'mamba2' is not a known"):
        opened("runs", RUN)


def test_an_implicit_entry_has_the_parameters_of_an_explicit_one():
    implicit = opened("runs", RUN)["parameters"]
    explicit = opened("baselines", BASELINE)["parameters"]
    assert explicit.keys() - implicit.keys() == {"training.lengths.growth_steps"}
    different = {key for key in explicit.keys() & implicit.keys() if explicit[key] != implicit[key]}
    assert different == {"model.implicit", "training.lengths.start"}
    assert implicit["training.num_training_steps"] == "150"
    assert (implicit["bounded.num_training_steps"], implicit["free.tolerance"]) == ("30", "0.05")


def test_the_steps_of_both_phases_count_where_one_has_a_share(parameters):
    def share(content):
        bounded, free = content["runs"][RUN]["bounded"], content["runs"][RUN]["free"]
        del bounded["num_training_steps"], free["num_training_steps"]
        bounded |= {"share": 0.25, "total_training_steps": 200}

    parameters(share)
    assert opened("runs", RUN)["parameters"]["training.num_training_steps"] == "200"


def test_entries_that_differ_by_their_seed_are_one_group(parameters):
    def add(content):
        runs = content["runs"]
        runs["seed_1"] = runs[RUN] | {"seed": 1}
        runs["wider"] = runs[RUN] | {"model": runs[RUN]["model"] | {"d_model": 64}}
        match = {"quantity": "training_flops", "vary": "steps"}
        content["matched"] = {
            f"matched_{run}": content["baselines"][BASELINE]
            | {"seed": seed, "match": match | {"run": run}}
            for seed, run in enumerate((RUN, "seed_1", "wider"))
        }

    parameters(add)
    runs = [seed_group("runs", name) for name in (RUN, "seed_1", "wider")]
    assert runs[0] == runs[1] != runs[2]
    matched = [seed_group("matched", f"matched_{name}") for name in (RUN, "seed_1", "wider")]
    assert matched[0] == matched[1] != matched[2]
    assert seed_group("baselines", BASELINE) not in (*runs, *matched)
    with open_run("runs", "seed_1", "train_bounded", {}, group=runs[0]) as tracker:
        assert isinstance(tracker, SpoolTracker)
    (start,) = events(tracker, "start")
    assert start["tags"]["seed_group"] == f"s3 mamba2 {runs[0][:8]}"


def test_upcycled_entries_of_sources_that_differ_by_their_seed_are_one_group(parameters):
    def add(content):
        runs, baselines = content["runs"], content["baselines"]
        baselines["base_seed_1"] = baselines[BASELINE] | {"seed": 1}
        model = baselines[BASELINE]["model"]
        baselines["wider"] = baselines[BASELINE] | {"model": model | {"d_model": 64}}
        upcycled = {"family": "upcycled", "implicit": True}
        content["upcycled"] = {
            f"of_{base}": runs[RUN]
            | {"seed": seed, "model": upcycled | {"source": f"models/{base}/final"}}
            for seed, base in enumerate((BASELINE, "base_seed_1", "wider"))
        }
        content["upcycled"]["of_the_hub"] = runs[RUN] | {"model": upcycled | {"source": "a/b"}}

    parameters(add)
    names = [f"of_{base}" for base in (BASELINE, "base_seed_1", "wider")]
    groups = [seed_group("upcycled", name) for name in (*names, "of_the_hub")]
    assert groups[0] == groups[1]
    assert len(set(groups)) == 3
    tables = read_models()
    models = {name: entry for table in tables.values() for name, entry in table.items()}
    assert [models[name].seed_group(models) for name in (*names, "of_the_hub")] == groups


def test_a_group_is_of_what_entries_mean_as_in_the_report(parameters):
    """A default that is spelt out, and a number that is written otherwise, change no group."""

    def add(content):
        runs, baselines = content["runs"], content["baselines"]
        model = runs[RUN]["model"] | {"chunk_length": None}
        runs["seed_1"] = runs[RUN] | {"seed": 1, "model": model}
        match = {"vary": "steps"}
        spelt_out = match | {"quantity": "training_flops"}
        content["matched"] = {
            "matched_0": baselines[BASELINE] | {"match": match | {"run": RUN}},
            "matched_1": baselines[BASELINE] | {"seed": 1, "match": spelt_out | {"run": "seed_1"}},
        }

    parameters(add)
    assert seed_group("runs", RUN) == seed_group("runs", "seed_1")
    assert seed_group("matched", "matched_0") == seed_group("matched", "matched_1")
    tables = read_models()
    models = {name: entry for table in tables.values() for name, entry in table.items()}
    report = {name: entry.seed_group(models) for name, entry in models.items()}
    for table, entries in tables.items():
        for name in entries:
            assert seed_group(table, name) == report[name]


def test_a_model_and_its_score_are_tracked_under_one_digest():
    folder = Path("models", RUN, "final")
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    data = Path("data", "s3")
    data.mkdir(parents=True)
    (data / "metadata.json").write_text("{}")
    with open_run("runs", RUN, "train_free", {}) as training:
        track_data(training, "s3", "training")
        track_phase(training, folder.parent, 3)
        track_model(training, "runs", RUN, folder, 7)
    with open_run("runs", RUN, "evaluate_benchmarks", {}) as evaluation:
        track_test(evaluation, {"accuracy": {"5": 0.5}, "cost": 2}, {"accuracy": {"5": 0.5}})
        track_score(evaluation, "runs", RUN, folder, ("accuracy.5", 0.5, True))
    phase, model = events(training, "logged_model")
    (reached,) = events(evaluation, "score")
    (read,) = events(training, "dataset")
    assert model["registered"] == reached["name"] == "implicit-models-mamba2-s3"
    assert model["digest"] == reached["digest"] == content_digest(folder)
    assert (model["phase"], model["step"], model["path"]) == ("final", 7, folder.as_posix())
    assert isinstance(training, SpoolTracker)
    copy = training.spool.copy_of(model["copy"])
    assert (copy / "model.safetensors").read_bytes() == b"weights"
    assert (phase["registered"], phase["copy"], phase["step"]) == (None, None, 3)
    *tracked, _ = events(evaluation, "metrics")  # the last is the machine's load
    assert [(event["level"], event["values"]) for event in tracked] == [
        ("both", {"test.accuracy.5": 0.5}),
        ("stage", {"test.cost": 2.0}),
    ]
    assert reached["metric"] == "test.accuracy.5"
    assert (read["name"], read["source"], read["context"]) == ("s3", "data/s3", "training")
    assert read["digest"] == reached["dataset_digest"]


def test_data_that_nothing_identifies_are_not_tracked():
    with open_run("runs", RUN, "train_free", {}) as tracker:
        track_data(tracker, "missing", "training")
    assert events(tracker, "dataset") == []


@pytest.fixture
def test_of_a_model(parameters, monkeypatch):
    """Return what opens the tracker of a test of a model, and returns its spool, if it has one."""
    model, data = Path("models", RUN, "final"), Path("data", "s3")
    for path in (model / "model.safetensors", data / "metadata.json", Path("code/evaluate", RUN)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")

    def opened(*, is_killed=False):
        tracker = open_test("runs", RUN, "sweep", {}, model=model, data=data, tested_as=RUN)
        if isinstance(tracker, SpoolTracker):
            tracker.log_metrics({"accuracy": 0.5})
            if is_killed:
                leave_as_killed(tracker)
            else:
                tracker.close()
            return tracker.spool
        return None

    return opened


def test_a_test_that_is_killed_is_one_run_with_the_one_in_its_place(test_of_a_model):
    first = test_of_a_model(is_killed=True)
    assert test_of_a_model() == first
    values = [event for event, _ in first.events() if "accuracy" in event.get("values", {})]
    assert len(values) == 1


def test_a_test_that_dvc_has_not_recorded_is_told_of_once(test_of_a_model, monkeypatch):
    first = test_of_a_model()
    assert test_of_a_model() is None

    # DVC runs it again although it has recorded it: it was told to.
    monkeypatch.setenv("DVC_STAGE", f"sweep@{RUN}")
    assert test_of_a_model() is None
    read = (Path("models", RUN, "final"), Path("code/evaluate", RUN))
    deps = [{"path": str(path), "md5": content_digest(path)} for path in read]
    lock = {"schema": "2.0", "stages": {f"sweep@{RUN}": {"cmd": "", "deps": deps}}}
    Path("dvc.lock").write_text(yaml.safe_dump(lock))
    assert test_of_a_model() not in (None, first)


@pytest.mark.parametrize(
    "changed", [f"models/{RUN}/final/model.safetensors", f"code/evaluate/{RUN}", "data/s3"]
)
def test_a_test_of_anything_else_is_another_run(test_of_a_model, changed):
    first = test_of_a_model()
    path = Path(changed)
    (path / "metadata.json" if path.is_dir() else path).write_text("after")
    assert test_of_a_model() not in (None, first)
