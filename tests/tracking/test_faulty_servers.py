"""MLflow's server behind a connection that fails: nothing is lost, and nothing is there twice."""

import contextlib
import os
import shutil
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from implicit_models.tracking import mlflow
from implicit_models.tracking.mlflow import Sender
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.spool import open_spools
from pipelines.server.local_server import HOST, QUIET, start_kept
from tests import warm_python

NUM_STEPS = 25
LARGE = 2**22
BREAKS = "it breaks in the middle of an artifact"
ANSWERS = {
    "it answers 500": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops",
    "it answers 503": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "it answers with a page": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
    b"Content-Length: 19\r\n\r\n<html>log in</html>",
    "it answers with no HTTP": b"\x00\x01\x02\x03",
}
FAULTS = [
    *ANSWERS,
    "it accepts and is silent",
    "it closes at once",
    "it takes the request and closes",
    "it closes in the middle of its answer",
    "it is slow",
]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Proxy(socketserver.ThreadingTCPServer):
    """A connection to a server, with a fault; after so many requests, where that is set."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int):
        super().__init__((HOST, 0), Connection)
        self.port = port
        self.fault: str | None = None
        self.good_requests = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address) -> None:
        """Connections break here on purpose."""


class Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        proxy = self.server
        assert isinstance(proxy, Proxy)
        with socket.create_connection((HOST, proxy.port)) as behind:
            while True:
                request = self._read_message(self.request)
                if not request:
                    return
                proxy.good_requests -= 1
                fault = proxy.fault if proxy.good_requests < 0 else None
                if fault in ANSWERS:
                    self.request.sendall(ANSWERS[fault])
                    return
                if fault == "it accepts and is silent":
                    time.sleep(30)
                    return
                if fault == "it closes at once":
                    return
                if fault == "it is slow":
                    time.sleep(0.1)
                if fault == BREAKS and len(request) > LARGE // 2:
                    behind.sendall(request[: len(request) // 2])
                    return
                behind.sendall(request)
                answer = self._read_message(behind)
                if fault == "it takes the request and closes":
                    return
                if fault == "it closes in the middle of its answer":
                    self.request.sendall(answer[: len(answer) // 2])
                    return
                self.request.sendall(answer)

    @staticmethod
    def _read_message(connection: socket.socket) -> bytes:
        """Read a request, or an answer, to its end."""
        found = b""
        while b"\r\n\r\n" not in found:
            part = connection.recv(65536)
            if not part:
                return found
            found += part
        head, _, body = found.partition(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        while len(body) < length:
            body += connection.recv(65536)
        return head + b"\r\n\r\n" + body


@pytest.fixture(scope="module")
def server(tmp_path_factory, empty_database) -> Iterator[str]:
    """Run MLflow's server."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database, folder / "mlflow.db")
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    address = f"http://{HOST}:{port}"
    own = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    own["PATH"] = warm_python.before(os.environ["PATH"])
    running = start_kept(
        "mlflow",
        [
            *("python", "-m", "mlflow", "server", "--host", HOST, "--port", str(port)),
            *("--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
            *("--artifacts-destination", str(folder / "artifacts")),
        ],
        health=f"{address}/health",
        environment={**os.environ, **QUIET, **own},
        folder=folder,
        log=folder / "mlflow.log",
    )
    with contextlib.ExitStack() as stack:
        stack.callback(running.stop)
        running.wait_until_up()
        yield address


@pytest.fixture
def proxy(server, monkeypatch) -> Iterator[Proxy]:
    """Put a proxy between this process and the server; requests are given up after a second."""
    with Proxy(int(server.rpartition(":")[2])) as proxy:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{HOST}:{proxy.server_address[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        monkeypatch.setenv("NO_PROXY", "*")
        yield proxy
        proxy.shutdown()


@pytest.mark.parametrize("good_requests", [0, 4, 9])
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost_or_twice(fault, good_requests, server, proxy, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", f"{fault}, after {good_requests}")
    proxy.fault, proxy.good_requests = fault, good_requests
    file = tmp_path / "file.txt"
    file.write_text("content")
    with open_tracker(
        entry="entry",
        stage="train_bounded",
        parameters={"seed": 0},
        dataset="a5",
        root=tmp_path,
        send=False,
    ) as tracker:
        for step in range(NUM_STEPS):
            tracker.log_metrics({"loss": 1 / (step + 1)}, step)
        tracker.log_artifact(file)
    began = time.monotonic()
    problems = Sender(tmp_path).send(open_spools(tmp_path))
    assert time.monotonic() - began < 20
    if fault == "it is slow":
        assert not problems
    else:
        (problem,) = problems.values()
        assert "\n" not in problem
        proxy.fault = None
        # A connection that was kept open, and is closed by now, costs one attempt.
        attempts = (Sender(tmp_path).send(open_spools(tmp_path)) for _ in range(3))
        assert {} in attempts
    assert open_spools(tmp_path) == []

    client = mlflow.connect(server)
    experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    runs = client.search_runs([experiment.experiment_id])
    assert sorted(run.data.tags["tracking.level"] for run in runs) == ["entry", "stage"]
    for run in runs:
        points = client.get_metric_history(run.info.run_id, "loss")
        assert [(p.step, p.value) for p in sorted(points, key=lambda point: point.step)] == [
            (step, 1 / (step + 1)) for step in range(NUM_STEPS)
        ]
        assert run.info.status == "FINISHED"
    (stage,) = (run for run in runs if run.data.tags["tracking.level"] == "stage")
    assert [each.path for each in client.list_artifacts(stage.info.run_id)] == [Path(file).name]


def test_an_artifact_that_breaks_off_is_sent_again_whole(server, proxy, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "artifacts")
    folder = tmp_path / "final"
    folder.mkdir()
    contents = {"small.json": b"{}", "large.bin": os.urandom(LARGE), "last.json": b"[]"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with open_tracker(
        entry="entry", stage="train_free", parameters={}, dataset="a5", root=tmp_path, send=False
    ) as tracker:
        tracker.log_artifact(folder, "checkpoint")
        tracker.log_metrics({"loss": 1.0}, 0)
    proxy.fault = BREAKS
    for _ in range(2):
        (problem,) = Sender(tmp_path).send(open_spools(tmp_path)).values()
        assert "\n" not in problem
    proxy.fault = None
    assert Sender(tmp_path).send(open_spools(tmp_path)) == {}

    client = mlflow.connect(server)
    experiment = client.get_experiment_by_name("artifacts")
    runs = client.search_runs([experiment.experiment_id])
    (stage,) = (run for run in runs if run.data.tags["tracking.level"] == "stage")
    found = Path(client.download_artifacts(stage.info.run_id, "checkpoint/final", tmp_path))
    assert {path.name: path.read_bytes() for path in found.iterdir()} == contents
    points = client.get_metric_history(stage.info.run_id, "loss")
    assert [(point.step, point.value) for point in points] == [(0, 1.0)]
