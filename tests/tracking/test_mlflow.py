import os
import socket
from typing import Any

import pytest

from implicit_models.parameters import digest
from implicit_models.tracking import mlflow, stores
from implicit_models.tracking.mlflow import Sender, parent_run_id
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.spool import Spool, all_spools, open_spools
from implicit_models.tracking.tracker import NullTracker
from pipelines.sweeps.points import Point
from pipelines.sweeps.tagging import filter_of, tag_points
from tests.tracking.killed import leave_as_killed

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own

PARAMETERS = {"model": {"family": "mamba2", "num_layers": 1}, "seed": 0}


def tracker(root, stage="train_bounded", entry="implicit", parameters=PARAMETERS, **options):
    return open_tracker(
        entry=entry,
        stage=stage,
        parameters=parameters,
        dataset="a5",
        seed=0,
        root=root,
        send=False,
        **options,
    )


def send(root):
    return list(Sender(root).send(open_spools(root)).values())


def the_start(root):
    """Return the first event of the only spool."""
    (spool,) = open_spools(root)
    start = spool.start()
    assert start is not None
    return start


class Unreliable:
    """A connection that fails on demand."""

    def __init__(self):
        self.is_down = True
        self.attempts = 0
        self.client: Any = None

    def connect(self, address):
        self.client = mlflow.connect(address)
        return self

    def __getattr__(self, name):
        if self.is_down:
            self.attempts += 1
            raise ConnectionError("connection refused")
        return getattr(self.client, name)


def test_stages_are_children_of_one_run_of_the_entry(root, store):
    for stage, steps in (("train_bounded", range(3)), ("train_free", range(3, 6))):
        with tracker(root, stage) as tracked:
            for step in steps:
                tracked.log_metrics({"loss": 10.0 - step}, step)
    for tolerance, accuracy in ((0.01, 1.0), (0.5, 0.25)):
        section = {"evaluation": {"tolerance": tolerance}}
        with tracker(root, "evaluate_benchmarks", stage_parameters=section) as tracked:
            tracked.log_metrics({"accuracy/16": accuracy})
    assert send(root) == []
    assert open_spools(root) == []

    (entry,) = store.entries()
    stages = store.stages()
    assert [run.info.run_name for run in stages] == [
        "train_bounded",
        "train_free",
        "evaluate_benchmarks",
        "evaluate_benchmarks",
    ]
    assert {run.data.tags["mlflow.parentRunId"] for run in stages} == {entry.info.run_id}
    assert all(run.info.status == "FINISHED" for run in store.runs())
    assert store.history(entry, "loss") == [(step, 10.0 - step) for step in range(6)]
    assert store.history(stages[1], "loss") == [(step, 10.0 - step) for step in range(3, 6)]
    assert [run.data.metrics["accuracy/16"] for run in (*stages[2:], entry)] == [1.0, 0.25, 0.25]
    tolerances = [run.data.params.get("evaluation.tolerance") for run in (*stages[2:], entry)]
    assert tolerances == ["0.01", "0.5", None]
    for run in (entry, *stages):
        assert run.data.params["model.family"] == "mamba2"
        assert run.data.tags["parameters.digest"] == digest(PARAMETERS)
        assert (run.data.tags["dataset"], run.data.tags["seed"]) == ("a5", "0")
    assert stages[1].data.tags["dvc.stage"] == "train_free@implicit"
    assert parent_run_id("implicit", digest(PARAMETERS), root) == entry.info.run_id


def test_metrics_can_go_to_one_of_the_two_runs(root, store):
    with tracker(root) as tracked:
        tracked.log_metrics({"seconds": 1.0}, 3, "stage")
        tracked.log_metrics({"seconds": 5.0}, 3, "entry")
    assert send(root) == []
    assert store.history(store.stages()[0], "seconds") == [(3, 1.0)]
    assert store.history(store.entries()[0], "seconds") == [(3, 5.0)]


def test_a_new_entry_gets_the_history_before_its_first_stage(root, store):
    """The free phase with another tolerance goes on from a bounded phase tracked elsewhere."""

    def train_free(parameters, step):
        with tracker(root, "train_free", parameters=parameters) as tracked:
            tracked.log_metrics({"loss": 1.0}, 0, "new entry")
            tracked.log_metrics({"loss": float(step)}, step)

    with tracker(root) as tracked:
        tracked.log_metrics({"loss": 1.0}, 0)
    train_free(PARAMETERS, 1)
    for step in (1, 2):
        train_free(PARAMETERS | {"seed": 1}, step)
    assert send(root) == []
    first, second = store.entries()
    assert store.history(first, "loss") == [(0, 1.0), (1, 1.0)]
    assert store.history(second, "loss") == [(0, 1.0), (1, 1.0), (2, 2.0)]
    assert all(store.history(run, "loss")[0][0] > 0 for run in store.stages()[1:])


def test_a_starting_stage_and_other_parameters_start_a_new_run(root, store):
    attempts = [
        ("train_bounded", PARAMETERS),
        ("train_bounded", PARAMETERS),
        ("train_free", PARAMETERS),
        ("train_free", PARAMETERS | {"seed": 1}),
    ]
    for stage, parameters in attempts:
        tracker(root, stage, parameters=parameters).close()
    assert send(root) == []
    first, second, other = store.entries()
    parents = [run.data.tags["mlflow.parentRunId"] for run in store.stages()]
    assert parents == [run.info.run_id for run in (first, second, second, other)]
    assert parent_run_id("implicit", digest(PARAMETERS), root) == second.info.run_id


def test_a_stage_without_local_records_joins_the_run_in_mlflow(root, store):
    tracker(root).close()
    send(root)
    for spool in all_spools(root):
        spool.path.unlink()
    for stage in ("evaluate_benchmarks", "sweep_test_time_compute"):
        tracker(root, stage).close()
    assert send(root) == []
    (entry,) = store.entries()
    assert {run.data.tags["mlflow.parentRunId"] for run in store.stages()} == {entry.info.run_id}
    for spool in all_spools(root):
        spool.path.unlink()
    assert parent_run_id("implicit", digest(PARAMETERS), root) == entry.info.run_id


def test_the_parent_is_unknown_until_it_is_sent(root):
    assert parent_run_id("implicit", digest(PARAMETERS), root) is None
    tracker(root).close()
    assert parent_run_id("implicit", digest(PARAMETERS), root) is None


def test_looking_up_a_parent_makes_no_database(bare_root):
    assert parent_run_id("implicit", digest(PARAMETERS), bare_root) is None
    assert list(bare_root.iterdir()) == []


def test_nothing_is_lost_while_the_store_is_down(root, store):
    connection = Unreliable()
    sender = Sender(root, connect=connection.connect)
    for entry in ("first", "second"):
        with tracker(root, entry=entry) as tracked:
            tracked.log_metrics({"loss": 1.0}, 0)
    problems = sender.send(open_spools(root))
    assert len(problems) == 2
    assert all("connection refused" in problem for problem in problems.values())
    assert connection.attempts == 1  # one that does not answer is asked once

    connection.is_down = False
    assert sender.send(open_spools(root)) == {}
    assert len(store.entries()) == 2
    assert all(store.history(run, "loss") == [(0, 1.0)] for run in store.runs())


def test_what_was_sent_but_not_acknowledged_appears_once(root, store, monkeypatch):
    """The sender dies, each time one acknowledgement later, between sending and writing it down."""
    write_sent = Spool.write_sent

    with tracker(root) as tracked:
        tracked.log_metrics({"loss": 1.0, "undefined": float("nan")}, 0)
        tracked.log_metrics({"loss": float("inf")}, 1)
        tracked.log_artifact(root / "mlflow.db")
    deaths = left = 0

    def die_when_none_is_left(spool, sent):
        nonlocal left
        if left == 0:
            raise OSError("killed")
        left -= 1
        write_sent(spool, sent)

    monkeypatch.setattr(Spool, "write_sent", die_when_none_is_left)
    while send(root):
        deaths += 1
        left = deaths
    assert deaths > 2
    assert open_spools(root) == []
    assert len(store.runs()) == 2
    for run in store.runs():
        assert [step for step, _ in store.history(run, "loss")] == [0, 1]
        assert len(store.history(run, "undefined")) == 1
        assert run.data.params["seed"] == "0"
    assert store.artifacts(store.stages()[0]) == ["mlflow.db"]


def test_a_resumed_stage_continues_its_run_without_duplicates(root, store):
    tracked = tracker(root, resume_key="checkpoint")
    for step in range(10):
        tracked.log_metrics({"loss": float(step)}, step)
    assert send(root) == []
    leave_as_killed(tracked)
    assert send(root) == []
    assert [run.info.status for run in store.runs()] == ["KILLED", "KILLED"]

    tracker(root, resume_key="another checkpoint").close()
    with tracker(root, resume_key="checkpoint") as tracked:
        for step in range(7, 12):
            tracked.log_metrics({"loss": float(step)}, step)
        assert send(root) == []
        assert store.entries()[0].info.status == "RUNNING"
    assert send(root) == []
    assert len(store.entries()) == len(store.stages()) == 2
    for run in (store.entries()[0], store.stages()[0]):
        assert run.info.status == "FINISHED"
        assert store.history(run, "loss") == [(step, float(step)) for step in range(12)]

    tracker(root, resume_key="checkpoint").close()
    assert send(root) == []
    assert len(store.entries()) == 3  # a finished run is not continued


def test_a_finished_spool_that_is_set_aside_while_it_is_looked_for_is_found(root, monkeypatch):
    tracker(root, resume_key="checkpoint").close()
    (spool,) = open_spools(root)
    is_being_written = Spool.is_being_written

    def sent_meanwhile(self: Spool) -> bool:
        found = is_being_written(self)
        if self == spool and self.path.exists():
            self.retire()
        return found

    monkeypatch.setattr(Spool, "is_being_written", sent_meanwhile)
    found = tracker(root, resume_key="checkpoint", finished_counts=True)
    assert isinstance(found, NullTracker)
    assert [each.path.parent.name for each in all_spools(root)] == ["sent"]


def test_a_stage_still_running_is_not_continued(root):
    first = tracker(root, resume_key="checkpoint")
    second = tracker(root, resume_key="checkpoint")
    assert first.spool != second.spool
    first.close()
    second.close()


def test_metrics_are_sent_in_batches_in_order(root, store):
    with tracker(root) as tracked:
        for step in range(700):
            tracked.log_metrics({"a": float(step), "b": 1.0, "c": 2.0}, step)
    sizes = []

    class Counting(Unreliable):
        def log_batch(self, run_id, metrics=(), params=(), tags=()):
            if metrics:
                sizes.append(len(metrics))
            self.client.log_batch(run_id, metrics=metrics, params=params, tags=tags)

    connection = Counting()
    connection.is_down = False
    assert Sender(root, connect=connection.connect).send(open_spools(root)) == {}
    assert max(sizes) <= 1000
    assert len(sizes) == 6  # three for the stage, three for the entry
    for run in store.runs():
        assert store.history(run, "a") == [(step, float(step)) for step in range(700)]


def test_what_mlflow_rejects_holds_nothing_up(root, store, caplog):
    parameters = {"../outside": 1, "fine": 1}
    with tracker(root, parameters=parameters) as tracked:
        tracked.log_metrics({"../outside": 1.0, "loss": 2.0, "odd @ name%": 3.0}, 0)
        tracked.log_metrics({"loss": 1.0}, 1)
    assert send(root) == []
    for run in store.runs():
        assert store.history(run, "loss") == [(0, 2.0), (1, 1.0)]
        assert run.data.params["fine"] == "1"
        assert run.data.metrics["odd _ name_"] == 3.0
    assert "../outside" in caplog.text


def test_a_damaged_spool_holds_nothing_up(root, store, caplog):
    """What can be read of it is sent; one that does not say what it is of is set aside."""
    for loss in (1.0, 2.0):
        with tracker(root) as tracked:
            for step in range(3):
                tracked.log_metrics({"loss": loss}, step)
    beginning, middle = (spool.path for spool in open_spools(root))
    for path, number in ((beginning, 0), (middle, 2)):
        lines = path.read_bytes().splitlines(keepends=True)
        lines[number] = b'{"event": "metrics"}\n'
        path.write_bytes(b"".join(lines))
    assert send(root) == []
    (entry,) = store.entries()
    assert store.history(entry, "loss") == [(0, 2.0), (2, 2.0)]
    assert entry.info.status == "FINISHED"
    assert open_spools(root) == []
    assert (root / ".tracking" / "damaged" / beginning.name).exists()
    assert f"{middle}, line 3 is left out" in caplog.text


def test_long_names_and_values_are_cut_and_stay_different(root, store):
    long = "x" * 7000
    tracker(root, parameters={f"{long}1": long + "1", f"{long}2": long + "2"}).close()
    assert send(root) == []
    (stage,) = store.stages()
    cut = {name: value for name, value in stage.data.params.items() if name.startswith("xxx")}
    assert len(cut) == len(set(cut.values())) == 2
    assert {len(value) for value in cut.values()} == {6000}


def test_artifacts_are_stored_under_the_stage_and_their_copies_removed(root, store):
    model = root / "final"
    model.mkdir()
    (model / "config.json").write_text("{}")
    tracked = tracker(root)
    tracked.log_artifact(model, "models")
    tracked.log_artifact(model / "config.json")
    assert send(root) == []
    assert not list(tracked.spool.artifact_folder.iterdir())
    tracked.close()
    (stage,) = store.stages()
    assert store.artifacts(stage) == ["config.json", "models"]
    assert store.artifacts(stage, "models/final") == ["models/final/config.json"]
    assert (root / "mlartifacts" / stage.info.run_id).is_dir()


def test_a_run_deleted_with_its_database_is_sent_anew(root, store, empty_database):
    tracked = tracker(root)
    tracked.log_metrics({"loss": 1.0}, 0)
    assert send(root) == []
    (root / "mlflow.db").write_bytes(empty_database.read_bytes())
    tracked.log_metrics({"loss": 2.0}, 1)
    tracked.close()
    for _ in range(2):
        send(root)
    assert [store.history(run, "loss") for run in store.runs()] == [[(0, 1.0), (1, 2.0)]] * 2


def test_what_was_sent_can_be_taken_back_and_sent_anew(root, store, empty_database):
    with tracker(root) as tracked:
        tracked.log_metrics({"loss": 1.0}, 0)
        tracked.log_artifact(root / "mlflow.db")
    assert send(root) == []
    (root / "mlflow.db").write_bytes(empty_database.read_bytes())
    for path in (root / ".tracking" / "sent").glob("*.jsonl"):
        path.rename(root / ".tracking" / path.name)
    assert send(root) == []
    assert [store.history(run, "loss") for run in store.runs()] == [[(0, 1.0)]] * 2
    assert [run.data.params["seed"] for run in store.runs()] == ["0", "0"]
    assert open_spools(root) == []


def test_a_damaged_database_is_a_problem_and_no_error(bare_root):
    (bare_root / "mlflow.db").write_bytes(b"this is no database" * 1000)
    with tracker(bare_root) as tracked:
        tracked.log_metrics({"loss": 1.0}, 0)
    (problem,) = send(bare_root)
    assert "not a database" in problem
    assert len(open_spools(bare_root)) == 1


@pytest.mark.parametrize(
    ("address", "recorded"),
    [
        (None, None),
        ("http://someone:secret@host:5000/path", "http://host:5000/path"),
        ("sqlite:////absolute/mlflow.db", "sqlite:////absolute/mlflow.db"),
    ],
)
def test_a_spool_remembers_where_it_belongs_without_credentials(
    root, monkeypatch, address, recorded
):
    if address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    tracker(root).close()
    assert the_start(root)["destination"] == recorded
    assert "secret" not in open_spools(root)[0].path.read_text()
    expected = address or f"sqlite:///{root}/mlflow.db"
    assert stores.address_of(recorded, root) == expected


def test_a_relative_database_is_found_from_anywhere(root, monkeypatch):
    monkeypatch.chdir(root)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    tracker(root).close()
    assert the_start(root)["destination"] == f"sqlite:///{root}/elsewhere.db"


def test_the_duration_of_an_entry_is_its_trainings(root, store):
    """Stages lie apart, and a test comes later: none of it is training."""
    for stage, seconds in (("train_bounded", 20.0), ("train_free", 61.5)):
        with tracker(root, stage) as tracked:
            tracked.log_metrics({"train.seconds": seconds}, 3, "entry")
    assert send(root) == []
    with tracker(root, "evaluate_benchmarks"):
        pass
    assert send(root) == []
    (entry,) = store.entries()
    assert entry.info.end_time - entry.info.start_time == 61_500
    assert entry.info.status == "FINISHED"
    for stage in store.stages():
        assert 0 <= stage.info.end_time - stage.info.start_time < 60_000


def point(name, **entries):
    return Point(name, name, (), {"runs": entries, "report": {"seed": 0}, "baselines": {}})


def test_the_filter_of_a_sweep_finds_points_that_have_trained_nothing(root, store):
    """One has come from DVC's cache; what both share was trained for neither of them."""
    narrow, wide, shared = ({"model": {"d_model": width}, "seed": 0} for width in (32, 64, 8))
    for entry, parameters in (("run", narrow), ("run", wide), ("shared", shared), ("other", {})):
        with tracker(root, entry=entry, parameters=parameters):
            pass
    tested_otherwise = shared | {"evaluation": {"batch_size": 2}}
    points = [
        point("steps-1", run=narrow, shared=shared),
        point("steps-2", run=wide, shared=tested_otherwise),
        point("steps-3", run={"model": {"d_model": 1}}),  # nobody has trained it
    ]
    for _ in range(2):  # the same command again
        assert tag_points(root, "steps", points) is None
    (experiment,) = {run.info.experiment_id for run in store.runs()}

    def found(text):
        runs = store.client.search_runs([experiment], text)
        return sorted(
            (run.data.tags["entry"], run.data.params["model.d_model"], run.data.tags["sweep.steps"])
            for run in runs
        )

    assert found(filter_of("steps")) == [
        ("run", "32", "steps-1"),
        ("run", "64", "steps-2"),
        ("shared", "8", "steps-1 steps-2"),
    ]
    assert found("tags.\"sweep.steps\" LIKE '%steps-2%'") == found(filter_of("steps"))[1:]
    assert found(filter_of("step")) == []


def test_a_sweep_says_why_the_runs_of_its_points_have_no_tag(root, monkeypatch, unanswered):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", unanswered)
    problem = tag_points(root, "steps", [point("steps-1", run={"model": {}})])
    assert problem is not None and "\n" not in problem
    assert tag_points(root, "steps", [point("steps-1", run={"seed": 1})]) is None  # nothing to tag


@pytest.fixture
def unanswered():
    """Return the address of a server that nobody runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_new_experiment_opens_as_one_of_models_in_training(root, store):
    with tracker(root):
        pass
    assert send(root) == []
    experiment = store.client.get_experiment_by_name("implicit-models")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_the_experiment_can_be_named_by_the_environment(root, store, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    tracker(root).close()
    assert send(root) == []
    assert len(store.runs("mine")) == 2


def test_mlflow_settings_of_the_process_are_left_as_they_were(root, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
    before = dict(os.environ)
    with mlflow._environment():
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "3"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "1"
    assert dict(os.environ) == before
