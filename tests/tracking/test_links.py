import subprocess
import sys

import pytest

from implicit_models.tracking.links import (
    TrackedRun,
    entry_page,
    run_page,
    tracked_run,
    waits_to_be_sent,
)
from implicit_models.tracking.mlflow import Sender
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.spool import SentState, Spool, all_spools, newest_first, open_spools
from stages.tracked import tracking_server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own

SERVER = "http://host:5000/prefix"


def tracker(root, stage, entry="implicit"):
    options = {"parameters": {"a": 1}, "dataset": "a5", "root": root, "send": False}
    return open_tracker(entry=entry, stage=stage, **options)


def test_a_stage_is_found_by_its_name_in_dvc(root, store):
    for stage in ("train_bounded", "train_free"):
        for entry in ("implicit", "explicit"):
            tracker(root, stage, entry).close()
    assert Sender(root).send(open_spools(root)) == {}
    experiment = store.client.get_experiment_by_name("implicit-models").experiment_id
    for run in store.stages():
        found = tracked_run(root, run.data.tags["dvc.stage"])
        assert found == TrackedRun(run.info.run_id, experiment, None)
    assert tracked_run(root, "train_free@other") is None


def test_the_newest_run_counts_and_is_unknown_until_it_is_sent(root, store):
    assert not waits_to_be_sent(root, "train_free@implicit")
    tracker(root, "train_free").close()
    assert tracked_run(root, "train_free@implicit") is None
    assert waits_to_be_sent(root, "train_free@implicit")
    Sender(root).send(open_spools(root))
    assert not waits_to_be_sent(root, "train_free@implicit")
    first = tracked_run(root, "train_free@implicit")
    tracker(root, "train_free").close()
    assert tracked_run(root, "train_free@implicit") is None
    Sender(root).send(open_spools(root))
    second = tracked_run(root, "train_free@implicit")
    assert first is not None and second is not None
    assert [first.run_id, second.run_id] == [run.info.run_id for run in store.stages()]


def test_an_entrys_run_has_a_page_where_a_server_has_it(bare_root):
    for _ in range(2):
        tracker(bare_root, "train_free").close()
    stores = {"old": "sqlite:////tmp/mlflow.db", "new": SERVER}
    for spool, (run, store) in zip(all_spools(bare_root), stores.items(), strict=True):
        sent = SentState(destination=store, experiment_id="7", run_id="r", parent_run_id=run)
        spool.write_sent(sent)
    assert entry_page(bare_root, "implicit", "new") == f"{SERVER}/#/experiments/7/runs/new"
    assert entry_page(bare_root, "implicit", "old") is None
    assert entry_page(bare_root, "implicit", "other") is None
    assert entry_page(bare_root, "explicit", "new") is None


def test_of_an_entry_no_other_entrys_spools_are_opened(bare_root, monkeypatch):
    for entry in ("implicit", "implicit-2", "explicit"):
        for stage in ("train_bounded", "train_free"):
            tracker(bare_root, stage, entry).close()
    opened = []
    start = Spool.start

    def counted(spool: Spool):
        opened.append(spool.path.name)
        return start(spool)

    monkeypatch.setattr(Spool, "start", counted)
    assert [start["stage"] for _, start in newest_first(bare_root, entry="explicit")] == [
        "train_free",
        "train_bounded",
    ]
    assert len(opened) == 2
    assert len(list(newest_first(bare_root, entry="implicit"))) == 2
    assert len(list(newest_first(bare_root))) == 6


@pytest.mark.parametrize(
    ("address", "server"),
    [
        ("http://me:secret@host:5000/prefix", SERVER),
        ("sqlite:///mlflow.db", None),
        ("postgresql://host/mlflow", None),
        ("", None),
    ],
)
def test_only_a_server_can_be_opened(address, server, monkeypatch, bare_root):
    monkeypatch.chdir(bare_root)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert tracking_server() == server


def test_the_name_that_dvc_gives_a_stage_counts(bare_root, monkeypatch):
    monkeypatch.setenv("DVC_STAGE", "train_upcycled_free@implicit")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@host:5000/prefix")
    tracker(bare_root, "train_free").close()
    (spool,) = all_spools(bare_root)
    start = spool.start()
    assert start is not None
    spool.write_sent(SentState(destination=start["destination"], experiment_id="7", run_id="r"))
    found = tracked_run(bare_root, "train_upcycled_free@implicit")
    assert found == TrackedRun("r", "7", f"{SERVER}/#/experiments/7/runs/r")


@pytest.mark.parametrize("store", [None, "sqlite:////mlflow.db", "postgresql://host/mlflow"])
def test_only_a_server_has_pages(store):
    assert run_page(store, "7", "r") is None


def test_the_links_need_neither_mlflow_nor_torch():
    command = (
        "import implicit_models.tracking.links, sys; print({'mlflow', 'torch'} & {*sys.modules})"
    )
    answer = subprocess.check_output([sys.executable, "-c", command], text=True)
    assert answer.strip() == "set()"
