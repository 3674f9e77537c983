"""A database of one's own as the tracking store: its address, and PostgreSQL where there is one."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from implicit_models.tracking import registry, stores
from implicit_models.tracking.mlflow import Sender, connect, parent_run_id
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.spool import open_spools
from implicit_models.tracking.stores import (
    address_of,
    artifact_location,
    destination_now,
    shown,
    without_credentials,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own

BINARIES = Path("/usr/lib/postgresql")
PASSWORD = "se@cret"
NUM_STEPS = 3000


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://me:secret@host/db", "postgresql://host/db"),
        ("postgresql+psycopg2://me:a%40b@host:5432/db", "postgresql+psycopg2://host:5432/db"),
        ("postgresql://me:se@cret@host/db", "postgresql://host/db"),
        (
            "postgresql:///db?host=/run&user=me&Password=secret&sslmode=require",
            "postgresql:///db?host=/run&user=***&Password=***&sslmode=require",
        ),
        ("http://host:5000/path", "http://host:5000/path"),
        ("sqlite:////a@b/mlflow.db", "sqlite:////a@b/mlflow.db"),
        ("https://me:secret@host:1/api", "https://host:1/api"),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("postgresql://me:se/cret@host:5432/mlflow", "postgresql://host:5432/mlflow"),
        ("mysql+pymysql://u:p#x/y@h/db", "mysql+pymysql://h/db"),
        ("http://user:pa#ss@host/api", "http://host/api"),
        ("https://host/?access_token=secret&x=1", "https://host/?access_token=***&x=1"),
    ],
)
def test_credentials_are_left_out(address, expected):
    assert shown(address) == without_credentials(address) == expected
    assert without_credentials(f"no route to {address} now") == f"no route to {expected} now"


def test_spaces_in_the_environments_addresses_hide_nothing(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.setenv(name, address := "https://u:pa ss@host/")
        assert shown(address) == "https://host/"
        assert (
            without_credentials(f"no route to {address}: gone") == "no route to https://host/: gone"
        )
        monkeypatch.delenv(name)


@pytest.mark.parametrize("installed", ["psycopg", "psycopg2"])
def test_the_driver_that_is_installed_is_taken(tmp_path, monkeypatch, installed):
    found = {"psycopg": None, installed: "here"}
    monkeypatch.setattr("importlib.util.find_spec", found.get)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@host/db")
    address = address_of(destination_now(tmp_path), tmp_path)
    driver = "" if installed == "psycopg" else "+psycopg2"
    assert address == f"postgresql{driver}://me:secret@host/db"
    assert address_of("postgresql+other://host/db", tmp_path) == "postgresql+other://host/db"


@pytest.mark.parametrize(
    ("address", "chosen", "expected"),
    [
        ("sqlite:////store/mlflow.db", None, "/store/mlartifacts"),
        ("postgresql://host/db", None, "{root}/mlartifacts"),
        ("postgresql+psycopg2://host/db", "s3://bucket/runs/", "s3://bucket/runs"),
        ("http://host:5000", "s3://bucket/runs", None),
    ],
)
def test_a_database_has_its_artifacts_in_a_place_of_ours(
    tmp_path, monkeypatch, address, chosen, expected
):
    monkeypatch.delenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", raising=False)
    if chosen:
        monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", chosen)
    assert artifact_location(address, tmp_path) == (expected and expected.format(root=tmp_path))


class Postgres:
    """A database server on a free port, of a user who is not root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.binaries = max(BINARIES.glob("*/bin"))
        self.user = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (folder / "password").write_text(PASSWORD)
        if os.getuid() == 0:  # whom PostgreSQL refuses to serve
            for path in (folder, folder / "password"):
                shutil.chown(path, self.user)
        self._run("initdb", "-U", "mlflow", "-A", "scram-sha-256", "--pwfile", folder / "password")

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c fsync=off"
        log = self.folder / "data" / "log"
        self._run("pg_ctl", "start", "-w", "-o", options, "-l", log)

    def kill(self) -> None:
        self._run("pg_ctl", "stop", "-m", "immediate")

    def _run(self, program, *arguments) -> None:
        subprocess.run(
            [self.binaries / program, "-D", self.folder / "data", *arguments],
            user=self.user if os.getuid() == 0 else None,
            check=True,
            stdout=subprocess.DEVNULL,
        )


@pytest.fixture
def postgres():
    if not list(BINARIES.glob("*/bin/initdb")):
        pytest.skip(f"PostgreSQL is not installed ({BINARIES} has no initdb)")
    pytest.importorskip("psycopg2")
    # Not below pytest's own folder, which nobody else may enter.
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        server = Postgres(Path(folder))
        server.start()
        yield server
        with contextlib.suppress(subprocess.CalledProcessError):
            server.kill()


def kill_in_the_middle(server, spool, sent):
    """Kill a server once it has got a tenth of what is new."""
    while spool.read_sent().offset < sent + (spool.size() - sent) / 10:
        time.sleep(0.001)
    server.kill()


@pytest.mark.parametrize("fault", ["nobody listens", "it accepts and is silent"])
def test_a_database_that_does_not_answer_holds_nobody_up(bare_root, monkeypatch, fault):
    pytest.importorskip("psycopg2")
    monkeypatch.setattr(stores, "_CONNECT_SECONDS", 2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if fault == "it accepts and is silent":
            taken.listen()
        address = f"postgresql://mlflow:{PASSWORD}@127.0.0.1:{taken.getsockname()[1]}/mlflow"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        tracker = open_tracker(
            entry="a", stage="train", parameters={}, dataset="a5", root=bare_root, send=False
        )
        tracker.close()
        connect("sqlite://")  # which imports
        began = time.monotonic()
        (problem,) = Sender(bare_root).send(open_spools(bare_root)).values()
        assert parent_run_id("another", "digest", bare_root) is None
        assert time.monotonic() - began < 15
    assert PASSWORD not in problem


@pytest.mark.slow
def test_postgresql_gets_everything_and_its_password_stays_in_the_environment(
    bare_root, postgres, monkeypatch, caplog
):
    address = f"postgresql://mlflow:se%40cret@127.0.0.1:{postgres.port}/postgres"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.delenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", raising=False)
    root = bare_root / "repository"
    root.mkdir()
    model = root / "final"
    model.mkdir()
    (model / "model.safetensors").write_text("weights")
    tracker = open_tracker(
        entry="implicit",
        stage="train_baseline",
        parameters={"a": 1},
        dataset="a5",
        root=root,
        send=False,
    )
    sender = Sender(root)
    for step in range(300):
        tracker.log_metrics({f"loss_{index}": float(step) for index in range(10)}, step)
    assert sender.send(open_spools(root)) == {}
    sent = tracker.spool.size()
    for step in range(300, NUM_STEPS):
        tracker.log_metrics({f"loss_{index}": float(step) for index in range(10)}, step)
    killing = threading.Thread(target=kill_in_the_middle, args=(postgres, tracker.spool, sent))
    killing.start()
    assert len(sender.send(open_spools(root))) == 1
    killing.join()
    assert sent < tracker.spool.read_sent().offset < tracker.spool.size()
    tracker.log_dataset("a5", "digest", "data/a5", "training")
    tracker.log_model(model, "weights.dir", phase="final", step=1, registered="mamba2-a5")
    tracker.log_metrics({"test.accuracy": 0.5})
    tracker.score_model("mamba2-a5", "weights.dir", "test.accuracy", 0.5, higher_is_better=True)
    tracker.close()
    (problem,) = sender.send(open_spools(root)).values()
    assert str(postgres.port) in problem
    postgres.start()
    assert sender.send(open_spools(root)) == {}
    assert open_spools(root) == []

    client = connect(address_of(destination_now(root), root))
    experiment = client.get_experiment_by_name("implicit-models")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 2
    for run in runs:
        points = client.get_metric_history(run.info.run_id, "loss_9")
        found = sorted((point.step, point.value) for point in points)
        assert found == [(step, float(step)) for step in range(NUM_STEPS)]
    version = client.get_model_version_by_alias("mamba2-a5", registry.BEST)
    (logged,) = client.search_logged_models([experiment.experiment_id])
    assert version.source == f"{root}/mlartifacts/models/{logged.model_id}/artifacts"
    assert [(each.key, each.value) for each in logged.metrics] == [("test.accuracy", 0.5)]
    assert Path(version.source, "model.safetensors").read_text() == "weights"

    kept = "".join(file.read_text() for file in (root / ".tracking").rglob("*") if file.is_file())
    for secret in (PASSWORD, "se%40cret", "mlflow:"):
        assert secret not in kept + problem + caplog.text
