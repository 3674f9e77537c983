import contextlib
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from implicit_models.tracking import recording, sync
from implicit_models.tracking.courier import Pace, is_running, lock_path, serve
from implicit_models.tracking.links import tracked_run
from implicit_models.tracking.mlflow import Sender, connect, deliver
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.recording import SpoolTracker
from implicit_models.tracking.spool import Spool, locked, open_spools
from tests import warm_python

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own

PROJECT = Path(__file__).parents[2]
NUM_STEPS = 400
MANY = 1_000

STAGE = f"""
import sys
from pathlib import Path
from implicit_models.tracking.opening import open_tracker

entry, root, ends = sys.argv[1:]
tracker = open_tracker(
    entry=entry, stage="train_bounded", parameters={{"a": 1}}, dataset="a5", root=Path(root),
    resume_key="checkpoint", send=False,
)
for step in range({NUM_STEPS}):
    tracker.log_metrics({{"loss": float(step), "accuracy": 0.5}}, step)
if ends == "ends":
    tracker.close()
else:
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def start_stage(root, entry, ends):
    return subprocess.Popen(
        [sys.executable, "-c", STAGE, entry, str(root), ends],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def start_sync(root):
    command = ["python", "-m", "implicit_models.tracking.sync", "--root", str(root)]
    warm = os.environ | {"PATH": warm_python.before(os.environ["PATH"])}
    return subprocess.Popen(command, cwd=PROJECT, env=warm, stderr=subprocess.PIPE, text=True)


HURRIED = Pace(poll=0.001, first=0.0, interval=0.0, rest=0.0, retry=0.001, linger=0.2)


def ensure_thread(root):
    """Start a courier whose process is a thread, with hardly a pause."""
    if not is_running(root):
        arguments = (root, Sender(root).send, HURRIED)
        threading.Thread(target=serve, args=arguments).start()


def start_event(destination):
    return {
        **{"entry": "implicit", "stage": "train_free", "digest": "d", "parent": "p"},
        **{"dvc_stage": "train_free@implicit", "experiment": "implicit-models"},
        **{"destination": destination, "tags": {}, "parameters": {}, "stage_parameters": {}},
    }


def until(condition):
    while not condition():
        threading.Event().wait(0.01)


@contextlib.contextmanager
def refusing():
    """An address where nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]


@contextlib.contextmanager
def hanging():
    """An address that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(recording, "_ASK_SECONDS", 0.0)


@pytest.mark.parametrize("server", [refusing, hanging])
def test_an_unreachable_server_warns_once_and_loses_nothing(
    root, store, monkeypatch, caplog, impatient, server
):
    with server() as port:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        start = start_event(f"http://127.0.0.1:{port}")
        ensure = functools.partial(ensure_thread, root)
        tracker = SpoolTracker(Spool.new(root, "implicit", "train_free"), start, ensure)
        for step in range(NUM_STEPS // 2):
            tracker.log_metrics({"loss": float(step)}, step)
        until(lambda: tracker.spool.read_sent().problem)
        for step in range(NUM_STEPS // 2, NUM_STEPS):
            tracker.log_metrics({"loss": float(step)}, step)
        tracker.close()
        until(lambda: not is_running(root))
        (record,) = caplog.records
        assert "Nothing is lost" in record.message
        deliver(root, patience=0.0)
        assert "could not be sent to MLflow" in caplog.records[-1].message

    # The server is back, here under another address.
    assert sync.main(["--root", str(root), "--to", f"sqlite:///{root}/mlflow.db"]) == 0
    for run in store.runs():
        assert store.history(run, "loss") == [(step, float(step)) for step in range(NUM_STEPS)]
    assert len(store.runs()) == 2


def test_a_killed_run_that_was_sent_elsewhere_by_hand_is_of_that_store(
    root, store, monkeypatch, caplog, impatient
):
    with refusing() as port:
        start = start_event(f"http://127.0.0.1:{port}")
        tracker = SpoolTracker(Spool.new(root, "implicit", "train_free"), start)
        tracker.log_metrics({"loss": 2.0}, 1)
        tracker.__exit__(KeyboardInterrupt, None, None)
        plain, to = ["--root", str(root)], f"sqlite:///{root}/mlflow.db"
        assert sync.main(plain) == 1
        assert sync.main([*plain, "--to", to]) == 0
        caplog.clear()
        assert sync.main(plain) == 0
        deliver(root, patience=0.0)
        assert "could not be sent" not in caplog.text
    (run,) = store.stages()
    assert (run.info.status, store.history(run, "loss")) == ("KILLED", [(1, 2.0)])


def test_a_courier_that_gets_no_processor_is_not_waited_for(root, store, monkeypatch, caplog):
    with SpoolTracker(Spool.new(root, "implicit", "train_free"), start_event(None)) as tracker:
        tracker.log_metrics({"loss": 1.0}, 0)
    monkeypatch.setattr("implicit_models.tracking.mlflow._SENDING_SECONDS", 0.2)
    with locked(root / ".tracking" / "sending.lock"):
        deliver(root, patience=0.0)
    assert "another process is sending" in caplog.records[-1].message
    assert store.runs() == [] and len(open_spools(root)) == 1
    deliver(root, patience=0.0)
    assert len(store.runs()) == 2 and open_spools(root) == []


def test_events_go_out_while_the_stage_runs(root, store):
    spool = Spool.new(root, "implicit", "train_free")
    ensure = functools.partial(ensure_thread, root)
    with SpoolTracker(spool, start_event(None), ensure) as tracker:
        tracker.log_metrics({"loss": 1.0}, 0)
        until(lambda: tracker.spool.read_sent().offset == tracker.spool.size())
        assert len(store.runs()) == 2
    deliver(root)
    assert open_spools(root) == []
    assert {run.info.status for run in store.runs()} == {"FINISHED"}
    until(lambda: not is_running(root))


def open_stage(root, entry):
    return open_tracker(
        entry=entry, stage="train_bounded", parameters={}, dataset="a5", root=root, send=False
    )


def test_a_stage_that_has_ended_does_not_wait_for_its_turn(root):
    sent = []

    def send(spools, live_seconds):
        sent.append([spool.path for spool in spools])
        return {}

    pace = HURRIED._replace(first=1e9, linger=0.0)
    courier = threading.Thread(target=serve, args=(root, send, pace))
    with open_stage(root, "running") as running:
        courier.start()
        courier.join(0.2)  # a hundred looks
        assert courier.is_alive() and not sent
        with open_stage(root, "other") as other:
            pass
        until(lambda: sent)
        assert sent == [[other.spool.path]]
    courier.join()
    assert sent[1:] == [[running.spool.path]]


def test_what_cannot_be_sent_is_tried_again_while_a_stage_runs(root):
    """What has ended is tried at once, then as often as the pace says, and once at the end."""
    attempts = []

    def send(spools, live_seconds):
        attempts.append(len(spools))
        return dict.fromkeys(spools, "connection refused")

    pace = HURRIED._replace(first=1e9, linger=0.0)
    open_stage(root, "ended").close()
    serve(root, send, pace)
    assert attempts == [1]
    with open_stage(root, "running"):
        courier = threading.Thread(target=serve, args=(root, send, pace._replace(first=0.0)))
        courier.start()
        until(lambda: len(attempts) > 10)
    courier.join()
    assert set(attempts[1:-1]) == {2}


def test_a_running_stage_is_sent_a_little_at_a_time(root, store, monkeypatch):
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    sender, offsets = Sender(root), [0]
    with open_tracker(
        entry="implicit", stage="train_free", parameters={}, dataset="a5", root=root, send=False
    ) as tracker:
        for step in range(3 * MANY):
            tracker.log_metrics({"loss": float(step)}, step)
        while offsets[-1] < tracker.spool.size():
            assert sender.send(open_spools(root), live_seconds=0.0) == {}
            offsets.append(tracker.spool.read_sent().offset)
        assert len(offsets) == 4 and offsets == sorted(set(offsets))
        for step in range(3 * MANY, 6 * MANY):
            tracker.log_metrics({"loss": float(step)}, step)
    assert sender.send(open_spools(root), live_seconds=0.0) == {}  # all: nobody runs beside it
    expected = [(step, float(step)) for step in range(6 * MANY)]
    assert all(store.history(run, "loss") == expected for run in store.runs())
    assert open_spools(root) == []


def test_the_courier_goes_on_with_what_it_left_of_a_stage_that_is_silent(root, monkeypatch):
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    sender, sizes = Sender(root), []

    def send(spools, live_seconds):
        sizes.append(spools[0].read_sent().offset)
        return sender.send(spools, live_seconds=0.0)

    courier = threading.Thread(target=serve, args=(root, send, HURRIED))
    with open_tracker(
        entry="implicit", stage="train_free", parameters={}, dataset="a5", root=root, send=False
    ) as tracker:
        for step in range(2 * MANY):
            tracker.log_metrics({"loss": float(step)}, step)
        size = tracker.spool.size()
        courier.start()
        until(lambda: tracker.spool.read_sent().offset == size)
    courier.join()
    assert sizes[0] == 0 < sizes[1] < size


def test_what_a_killed_stage_logged_is_sent_later_and_continued(root, store):
    stage = start_stage(root, "implicit", "hangs")
    assert stage.stdout is not None
    assert stage.stdout.readline() == "ready\n"
    stage.send_signal(signal.SIGKILL)
    stage.communicate()
    (spool,) = open_spools(root)
    with spool.path.open("a") as file:
        file.write('{"event":"metrics","time":17')

    assert sync.main(["--root", str(root)]) == 0
    expected = [(step, float(step)) for step in range(NUM_STEPS)]
    assert [run.info.status for run in store.runs()] == ["KILLED"] * 2
    assert all(store.history(run, "loss") == expected for run in store.runs())

    stage = start_stage(root, "implicit", "ends")  # repeats every step
    stage.communicate()
    assert sync.main(["--root", str(root)]) == 0
    assert [run.info.status for run in store.runs()] == ["FINISHED"] * 2
    assert all(store.history(run, "loss") == expected for run in store.runs())
    assert open_spools(root) == []


def test_nothing_to_send_is_no_failure(bare_root):
    assert sync.main(["--root", str(bare_root)]) == 0


def test_one_courier_serves_at_a_time(root):
    lock_path(root).parent.mkdir()
    send = Sender(root).send
    with locked(lock_path(root)):
        serve(root, send, Pace(linger=1e9))  # returns, since another one is serving
    serve(root, send, Pace(poll=0.0, linger=0.0))  # returns, since nobody needs it


@pytest.mark.slow
def test_parallel_stages_and_senders_make_one_complete_record(bare_root):
    """Five processes write, two more create the database and send at the same time."""
    from tests.tracking.conftest import Store

    entries = [f"entry_{index}" for index in range(5)]
    stages = [start_stage(bare_root, entry, "ends") for entry in entries]
    for stage in stages:
        stage.communicate()
    senders = [start_sync(bare_root) for _ in range(2)]
    for sender in senders:
        _, errors = sender.communicate()
        assert sender.returncode == 0, errors
    store = Store(bare_root)
    assert len(store.entries()) == len(store.stages()) == len(entries)
    expected = [(step, float(step)) for step in range(NUM_STEPS)]
    assert all(store.history(run, "loss") == expected for run in store.runs())
    assert open_spools(bare_root) == []


@pytest.mark.slow
def test_the_courier_sends_what_is_left_after_the_stages_and_leaves(root, store, tmp_path):
    passing = tmp_path / "copy"
    for stage in ("train_bounded", "train_free"):
        passing.mkdir()
        with contextlib.chdir(passing):  # as DVC runs queued experiments
            with open_tracker(
                entry="implicit", stage=stage, parameters={"a": 1}, dataset="a5", root=root
            ) as tracker:
                tracker.log_metrics({"loss": 1.0}, 0)
            passing.rmdir()
    until(lambda: not open_spools(root))
    with locked(lock_path(root)):  # waits until the process has let go
        assert (root / ".tracking" / "courier.log").read_text() == ""
    assert len(store.runs()) == 3
    assert {run.info.status for run in store.runs()} == {"FINISHED"}


@pytest.mark.slow
def test_a_server_down_at_start_in_the_middle_and_at_the_end_gets_everything(
    bare_root, empty_database, monkeypatch
):
    """It comes late, is killed in the middle of receiving, and is back when the stage has ended."""
    with refusing() as port:
        pass
    address = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
    (bare_root / "server").mkdir()
    shutil.copy(empty_database, bare_root / "server" / "mlflow.db")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tracker = open_tracker(
        entry="implicit",
        stage="train_baseline",
        parameters={"a": 1},
        dataset="a5",
        root=bare_root,
        send=False,
    )
    sender = Sender(bare_root)

    def log(steps):
        for step in steps:
            tracker.log_metrics({f"loss_{index}": float(step) for index in range(10)}, step)
            tracker.log_metrics({"undefined": float("nan")}, step)

    log(range(MANY))
    assert len(sender.send(open_spools(bare_root))) == 1
    with running_server(bare_root, port) as server:

        def kill_in_the_middle():
            until(lambda: tracker.spool.read_sent().offset > tracker.spool.size() / 10)
            os.killpg(server.pid, signal.SIGKILL)

        killing = threading.Thread(target=kill_in_the_middle)
        killing.start()
        assert len(sender.send(open_spools(bare_root))) == 1
        killing.join()
    assert 0 < tracker.spool.read_sent().offset < tracker.spool.size()
    log(range(MANY, MANY + 100))
    model = bare_root / "final"
    model.mkdir()
    (model / "model.safetensors").write_text("weights")
    tracker.log_dataset("a5", "digest", "data/a5", "training")
    tracker.log_model(model, "weights.dir", phase="final", step=1, registered="mamba2-a5")
    tracker.log_metrics({"test.accuracy": 0.5})
    tracker.score_model("mamba2-a5", "weights.dir", "test.accuracy", 0.5, higher_is_better=True)
    tracker.close()
    assert len(sender.send(open_spools(bare_root))) == 1

    with running_server(bare_root, port):
        assert sender.send(open_spools(bare_root)) == {}
        client = connect(address)
        runs = client.search_runs(["1"])
        expected = [(step, float(step)) for step in range(MANY + 100)]
        for run, index in itertools.product(runs, (0, 9)):
            points = client.get_metric_history(run.info.run_id, f"loss_{index}")
            assert sorted((point.step, point.value) for point in points) == expected
        assert {run.info.status for run in runs} == {"FINISHED"} and len(runs) == 2
        version = client.get_model_version_by_alias("mamba2-a5", "best")
        place = client.get_model_version_download_uri("mamba2-a5", version.version)
        (logged,) = client.search_logged_models(["1"])
        assert place == f"mlflow-artifacts:/1/models/{logged.model_id}/artifacts"
        assert [(each.key, each.value) for each in logged.metrics] == [("test.accuracy", 0.5)]
        found = tracked_run(bare_root, "train_baseline@implicit")
        assert found is not None
        assert found.address == f"{address}/#/experiments/1/runs/{version.run_id}"
    assert list(bare_root.glob("server/artifacts/**/model.safetensors"))
    assert open_spools(bare_root) == []


@contextlib.contextmanager
def running_server(root, port):
    folder = root / "server"
    command = ["python", "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    environment = os.environ | {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PATH": warm_python.before(os.environ["PATH"]),
    }
    environment.pop("MLFLOW_TRACKING_URI")
    with (folder / "log").open("a") as log:
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while True:
            assert server.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            threading.Event().wait(0.1)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            everything = warm_python.family(server.pid)
            os.killpg(server.pid, signal.SIGKILL)
            assert not psutil.wait_procs(everything, timeout=60)[1]  # and with it the port is free
        server.wait()
