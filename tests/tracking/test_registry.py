"""Models in the registry, the data sets of runs: what MLflow holds after any order of sending."""

import itertools
from pathlib import Path

import pytest

from implicit_models.tracking import mlflow, registry
from implicit_models.tracking.mlflow import Sender
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.spool import Spool, open_spools

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own

MODEL = "implicit-models-mamba2-a5"


def tracker(root, stage, seed=0):
    return open_tracker(
        entry=f"seed_{seed}",
        stage=stage,
        parameters={"seed": seed},
        dataset="a5",
        seed=seed,
        root=root,
        send=False,
    )


def train_folder(root, seed=0):
    model = root / "final"
    model.mkdir(exist_ok=True)
    (model / "model.safetensors").write_text(f"weights of seed {seed}")
    return model


def train(root, seed=0):
    model = train_folder(root, seed)
    with tracker(root, "train_baseline", seed) as tracked:
        tracked.log_model(model, f"weights_{seed}.dir", phase="final", step=9, registered=MODEL)
    return tracked.spool


def evaluate(root, value, seed=0, higher=True, data: str | None = "data", digest=None):
    with tracker(root, "evaluate_benchmarks", seed) as tracked:
        tracked.score_model(
            MODEL,
            digest or f"weights_{seed}.dir",
            "test.accuracy",
            value,
            higher_is_better=higher,
            dataset_digest=data,
        )
    return tracked.spool


def send(root, *spools):
    assert Sender(root).send(spools or open_spools(root)) == {}


def map_runs(store):
    """Return the runs with their inputs and outputs."""
    return [store.client.get_run(run.info.run_id) for run in store.runs()]


def versions(store):
    found = store.client.search_model_versions(f"name = '{MODEL}'")
    return {int(version.version): version for version in found}


def best(store):
    number = store.client.get_registered_model(MODEL).aliases.get(registry.BEST)
    return number and int(number)


def test_a_final_model_is_a_version_that_leads_back_to_its_run(root, store):
    train(root, seed=3)
    send(root)
    (version,) = versions(store).values()
    (stage,) = store.stages()
    assert version.run_id == stage.info.run_id
    assert version.tags["entry"] == "seed_3" and version.tags["seed"] == "3"
    assert version.tags["dvc.md5"] == "weights_3.dir"
    assert version.tags["dvc.stage"] == "train_baseline@seed_3"
    (model,) = store.models()
    source = store.client.get_model_version_download_uri(MODEL, version.version)
    assert source == model.artifact_location
    assert model.tags["mlflow.modelVersions"] == f'[{{"name": "{MODEL}", "version": "1"}}]'
    weights = [path for path in root.rglob("model.safetensors") if path.parts[-2] != "final"]
    assert [path.read_text() for path in weights] == ["weights of seed 3"]  # and nowhere else
    assert str(weights[0].parent) == model.artifact_location
    for run in store.runs():
        assert run.data.tags["model"] == MODEL and run.data.tags["model.version"] == "1"
    assert best(store) is None  # nobody has tested it


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5])
def test_the_best_does_not_depend_on_the_order_of_sending(root, store, order):
    stages = [train(root, 0), train(root, 1), evaluate(root, 0.5, 0), evaluate(root, 0.75, 1)]
    for index in order:
        send(root, stages[index])
    assert len(versions(store)) == 2
    assert versions(store)[best(store)].tags["seed"] == "1"
    assert versions(store)[best(store)].tags["score"] == "0.75"


def test_of_equals_the_oldest_stays_and_a_lower_score_moves_it_back(root, store):
    for seed, value in ((0, 0.5), (1, 0.5), (2, float("nan"))):
        train(root, seed)
        evaluate(root, value, seed)
        send(root)
        assert best(store) == 1
    evaluate(root, 0.25, seed=0)
    send(root)
    assert best(store) == 2
    assert "score" not in versions(store)[3].tags


def test_lower_is_better_where_the_metric_says_so(root, store):
    for seed, value in ((0, 3.0), (1, 2.0), (2, 10.0)):
        train(root, seed)
        evaluate(root, value, seed, higher=False)
        send(root)
    assert best(store) == 2


def test_versions_compete_on_the_same_data_alone(root, store):
    for seed, (value, data) in enumerate([(0.9, "old"), (0.5, "new"), (0.4, "new"), (0.1, None)]):
        train(root, seed)
        evaluate(root, value, seed, data=data)
        send(root)
        assert best(store) == (1, 2, 2, 4)[seed]


def test_equal_weights_are_one_version(root, store):
    for _ in range(2):
        train(root)
        evaluate(root, 0.5)
        send(root)
    assert list(versions(store)) == [1]
    assert [run.data.tags["model.version"] for run in store.entries()] == ["1", "1"]


def test_a_sender_that_dies_registers_nothing_twice(root, store, monkeypatch):
    """It dies, each time one acknowledgement later, between sending and writing it down."""
    write_sent = Spool.write_sent
    train(root)
    evaluate(root, 0.5)
    with tracker(root, "evaluate_benchmarks") as tracked:
        tracked.log_dataset("a5", "d" * 32 + ".dir", "data/a5", "evaluation")
    deaths = left = 0

    def die_when_none_is_left(spool, sent):
        nonlocal left
        if left == 0:
            raise OSError("killed")
        left -= 1
        write_sent(spool, sent)

    monkeypatch.setattr(Spool, "write_sent", die_when_none_is_left)
    while Sender(root).send(open_spools(root)):
        deaths += 1
        left = deaths
    assert deaths > 5
    assert list(versions(store)) == [1] and best(store) == 1
    (entry,) = store.entries()
    assert len(entry.inputs.dataset_inputs) == 1
    (model,) = store.models()
    assert model.status == "READY"
    outputs = [run.outputs.model_outputs for run in map_runs(store) if run.outputs]
    assert [len(each) for each in outputs if each] == [1]


def test_models_of_both_phases_are_outputs_of_the_runs_that_trained_them(root, store):
    bounded = root / "bounded"
    bounded.mkdir()
    (bounded / "model.safetensors").write_text("half trained")
    with tracker(root, "train_bounded") as tracked:
        tracked.log_model(bounded, "half.dir", phase="bounded", step=3)
    with tracker(root, "train_free") as tracked:
        tracked.log_model(train_folder(root), "whole.dir", phase="final", step=9, registered=MODEL)
    send(root)
    first, last = store.models()
    assert [first.name, last.name] == ["seed_0 bounded", "seed_0 final"]
    assert [model.status for model in (first, last)] == ["READY", "READY"]
    assert [model.tags["dvc.md5"] for model in (first, last)] == ["half.dir", "whole.dir"]
    assert not Path(first.artifact_location).exists()  # it is in DVC's cache
    outputs = {run.info.run_name: run.outputs for run in map_runs(store)}
    for stage, model, step in (("train_bounded", first, 3), ("train_free", last, 9)):
        (output,) = outputs[stage].model_outputs
        assert (output.model_id, output.step) == (model.model_id, step)
        assert model.source_run_id == store.client.get_run(model.source_run_id).info.run_id
    assert list(versions(store)) == [1]


@pytest.mark.parametrize("tested_first", [False, True])
def test_headline_scores_lie_on_the_model_that_was_tested_with_the_data(root, store, tested_first):
    def test():
        with tracker(root, "evaluate_benchmarks") as tracked:
            tracked.log_dataset("a5", "d.dir", "data/a5", "evaluation")
            tracked.log_metrics({"test.accuracy": 0.5, "test.perplexity": 3.0})
            tracked.log_metrics({"test.seconds": 7.0}, level="stage")
            tracked.score_model(MODEL, "weights_0.dir", "test.accuracy", 0.5, higher_is_better=True)
        return tracked.spool

    spools = [train(root), test()]
    for spool in reversed(spools) if tested_first else spools:
        send(root, spool)
    test()
    send(root)  # again: another run, the same model
    (model,) = store.models()
    found = sorted((each.key, each.value, each.dataset_name) for each in model.metrics)
    assert found == [
        *[("test.accuracy", 0.5, "a5")] * 2,
        *[("test.perplexity", 3.0, "a5")] * 2,
    ]
    tests = [run for run in map_runs(store) if run.info.run_name == "evaluate_benchmarks"]
    assert len(tests) == 2
    for run in tests:
        assert [each.model_id for each in run.inputs.model_inputs] == [model.model_id]
        assert store.history(run, "test.accuracy") == [(0, 0.5)]


def test_a_version_ranked_under_the_metrics_former_name_still_competes(root, store):
    train(root, 0)
    evaluate(root, 0.75, 0)
    send(root)
    store.client.set_model_version_tag(MODEL, "1", "score.metric", "evaluation.accuracy")
    train(root, 1)
    evaluate(root, 0.5, 1)
    send(root)
    assert best(store) == 1


def test_a_store_without_logged_models_has_the_weights_among_the_runs_files(root, store):
    class Refusal(Exception):
        error_code = "ENDPOINT_NOT_FOUND"

    class Older:
        def __init__(self, address):
            self.client = mlflow.connect(address)

        def search_logged_models(self, *_):
            raise Refusal("no such endpoint")

        def __getattr__(self, name):
            return getattr(self.client, name)

    train(root)
    evaluate(root, 0.5)
    assert Sender(root, connect=Older).send(open_spools(root)) == {}
    (version,) = versions(store).values()
    assert Path(version.source, "model.safetensors").read_text() == "weights of seed 0"
    assert version.source.endswith("checkpoint/final")
    assert best(store) == 1


def test_data_sets_are_inputs_with_their_digests(root, store):
    digest = "0123456789abcdef0123456789abcdef.dir"
    for stage, context in (("train_baseline", "training"), ("evaluate_benchmarks", "evaluation")):
        with tracker(root, stage) as tracked:
            tracked.log_dataset("a5", digest, "data/a5", context)
    with tracker(root, "evaluate_reading_other") as tracked:
        tracked.log_dataset("other", digest, "data/other", "evaluation")
        tracked.log_dataset("other", digest, "data/other", "evaluation")
    send(root)
    found = {
        run.info.run_name: [
            (
                *(each.dataset.name, each.dataset.digest, each.dataset.source),
                *(tag.value for tag in each.tags),
            )
            for each in run.inputs.dataset_inputs
        ]
        for run in map(store.client.get_run, [run.info.run_id for run in store.runs()])
    }
    a5 = ("a5", digest, '{"uri": "data/a5"}')
    other = ("other", digest, '{"uri": "data/other"}')
    assert found["train_baseline"] == [(*a5, "training")]
    assert found["evaluate_benchmarks"] == [(*a5, "evaluation")]
    assert found["evaluate_reading_other"] == [(*other, "evaluation")]
    assert sorted(found["seed_0"]) == [a5, other]  # whatever was sent first


def test_a_store_without_a_registry_takes_everything_else(root, store, caplog):
    class Refusal(Exception):
        error_code = "FEATURE_DISABLED"

    class WithoutRegistry:
        def __init__(self, address):
            self.client = mlflow.connect(address)

        def create_registered_model(self, name):
            raise Refusal("there is no registry")

        def __getattr__(self, name):
            return getattr(self.client, name)

    train(root)
    assert Sender(root, connect=WithoutRegistry).send(open_spools(root)) == {}
    said = f"MLflow rejected the logged model {MODEL}: Refusal: there is no registry"
    assert said in caplog.text
    assert {run.info.status for run in store.runs()} == {"FINISHED"}
    assert len(store.models()) == 1
