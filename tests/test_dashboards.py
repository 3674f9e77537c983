"""`make dashboards`, and what a browser shows of it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from implicit_models.parameters import digest
from implicit_models.tracking.mlflow import Sender, parent_run_id
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.spool import open_spools
from pipelines.server.comparison import ask, comparison_page, reproduced
from pipelines.server.embedded import DASHBOARDS
from pipelines.server.local_server import FOLDER, ServerError, answers
from scripts import dashboards, screenshots
from tests import warm_python
from tests.pipelines.tiny import LEFT_OUT, Project, project, record_of, stage, wait_until

ROOT = Path(__file__).parents[1]
STAGES = {
    "prepare": stage("echo 1 > data.txt", (), ("data.txt",)),
    "train": stage("cp data.txt model.txt", ("data.txt",), ("model.txt",)),
    "spoiled": stage("echo no such data; false", ("data.txt",), ("spoiled.txt",)),
}


def track(root: Path) -> None:
    """Send an implicit and an explicit run to MLflow, the latter in two versions, and report."""
    compared = {}
    for entry, parameters in (
        ("implicit", {"model": {"implicit": True, "d_model": 32}, "free": {"max_steps": 12}}),
        ("explicit", {"model": {"implicit": False, "d_model": 48}}),
        ("of_long_ago", {"model": {"implicit": False, "d_model": 24}}),
    ):
        tracker = open_tracker(
            entry=entry,
            stage="train_free",
            parameters=parameters,
            dataset="a5",
            labels={"kind": entry, "family": "mamba2"},
            root=root,
            send=False,
        )
        for step in range(1, 6):
            accuracy = step / (5 if entry == "implicit" else 50)
            tracker.log_metrics({"train.accuracy": accuracy}, step)
        reached = 0.75 if entry == "implicit" else 0.125
        tracker.log_metrics({"test.accuracy_last_10.12": reached, "test.accuracy_last_10.6": 1.0})
        tracker.log_metrics({"train.seconds": 61.5, "train.flops": 2e12})
        tracker.close()
        assert Sender(root).send(open_spools(root)) == {}
        compared[entry] = {"mlflow_run_id": parent_run_id(entry, digest(parameters), root)}
    del compared["of_long_ago"]
    (root / "results").mkdir()
    (root / "results" / "summary.json").write_text(json.dumps({"runs": compared}))


def environment() -> dict[str, str]:
    """Return one in which the dashboards' servers have imported their libraries already."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith(LEFT_OUT)}
    return kept | warm_python.for_own_processes()


class Served:
    """Dashboards that run, and the project whose they are."""

    def __init__(self, made: Project) -> None:
        self.project = made
        self.process = subprocess.Popen(
            [sys.executable, "scripts/dashboards.py", "--root", str(made.path), "--port", "5600"],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.file = made.path / FOLDER / DASHBOARDS
        wait_until(lambda: self.addresses or self.process.poll() is not None, 180)

    @property
    def addresses(self) -> dict[str, str]:
        """Where they are, once they are."""
        return json.loads(self.file.read_text() or "{}") if self.file.exists() else {}

    def end(self, number: int) -> tuple[str, list[psutil.Process]]:
        """End them by a signal; returns what they have said and all processes there were."""
        children = warm_python.family(self.process.pid)[1:]
        self.process.send_signal(number)
        return self.process.communicate(timeout=60)[0], children


@pytest.fixture(scope="module")
def recorded(empty_record, empty_database) -> Callable[[Path], Project]:
    """Make projects whose records are there, and empty: their servers take seconds to make them."""

    def make(path: Path) -> Project:
        record_of(empty_record, path)
        shutil.copy(empty_database, path / "mlflow.db")
        return project(path, STAGES)

    return make


@pytest.fixture(scope="module")
def served(tmp_path_factory, recorded) -> Iterator[Served]:
    """Dashboards of a project with a flow that failed in one stage, and two tracked runs."""
    made = recorded(tmp_path_factory.mktemp("dashboards") / "project")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "DVC_STAGE", "DVC_EXP_NAME"):
            patch.delenv(name, raising=False)
        track(made.path)
    running = Served(made)
    made.flow(status=1)  # while they run: it uses their server
    yield running
    printed = comparison_page(running.addresses["mlflow"], reproduced(made.path))
    output, children = running.end(signal.SIGINT)
    assert running.process.returncode == 0, output
    assert printed is not None and printed.num_shown == printed.num_found == 2
    assert f"implicit beside explicit:\n         {printed.address}\nCtrl-C" in output
    assert len(children) >= 4  # two keepers, two servers
    assert not psutil.wait_procs(children, timeout=10)[1]
    assert not any(answers(address) for address in running.addresses.values())


@pytest.fixture(scope="module")
def page(served):
    if shutil.which("chromium") is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with screenshots.browser_page() as opened:
        requests = []
        opened.on("request", lambda request: requests.append(request.url))
        yield opened
    # Nothing is asked of anybody but this machine.
    assert [url for url in requests if url.startswith("http") and "//127.0.0.1:" not in url] == []


@pytest.mark.slow
def test_a_flow_started_meanwhile_is_in_the_servers_record(served):
    addresses = served.addresses
    assert addresses.keys() == {"prefect", "mlflow"}
    assert all(address.startswith("http://127.0.0.1:") for address in addresses.values())
    (run,) = ask(f"{addresses['prefect']}/flow_runs/filter", {})
    assert run["state_type"] == "FAILED"
    # It had no server of its own.
    assert served.project.states()[1]["train"] == "Completed"
    listening = {
        connection.laddr.ip
        for child in warm_python.family(served.process.pid)
        for connection in child.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


@pytest.mark.slow
def test_a_second_call_names_the_first(served):
    command = [sys.executable, "scripts/dashboards.py", "--root", str(served.project.path)]
    output = subprocess.check_output(command, cwd=ROOT, text=True)
    assert "run already" in output
    assert served.addresses["mlflow"] in output


@pytest.mark.slow
def test_the_page_of_a_flow_shows_the_stages_and_their_states(served, page):
    screenshots.show_flow_run(page, served.addresses["prefect"])
    page.get_by_text("Task Runs", exact=True).first.click()
    for name, state in (("prepare", "Completed"), ("train", "Completed"), ("spoiled", "Failed")):
        entry = page.locator("li, .state-list-item, .p-list-item").filter(has_text=name)
        entry.filter(has_text=state).first.wait_for()


@pytest.mark.slow
def test_mlflow_compares_an_implicit_and_an_explicit_run(served, page):
    mlflow = served.addresses["mlflow"]
    runs = screenshots.find_runs(mlflow, ["implicit", "explicit"])
    screenshots.show_parameters(page, mlflow, runs, "model.d_model")
    rows = page.locator("tr, [role=row]")
    for name, values in {
        "model.implicit": ("true", "false"),
        "model.d_model": ("32", "48"),
        "free.max_steps": ("12", ""),
    }.items():
        row = rows.filter(has=page.get_by_text(name, exact=True)).last
        assert row.inner_text().split() == [name, *filter(None, values)]
    screenshots.show_curves(page, mlflow, runs, "train.accuracy")
    curves = page.locator(".scatterlayer .js-line")
    curves.first.wait_for(state="attached")
    # Each of its own shape: one that learns, one that does not.
    shapes = {curve.get_attribute("d") for curve in curves.all()}
    assert len(shapes) == 2


@pytest.mark.slow
def test_the_printed_page_has_the_runs_of_the_last_report_with_their_scores(served, page):
    shown = comparison_page(served.addresses["mlflow"], reproduced(served.project.path))
    assert shown is not None
    address = shown.address
    screenshots.show_runs(page, address, "implicit")
    from_left = "cells => cells.map(cell => [cell.getBoundingClientRect().x, cell.innerText])"
    heads = sorted(page.locator(".ag-header-cell").evaluate_all(from_left))
    columns = [text.strip() for _, text in heads]
    beginnings = ("kind", "family", "test.", "train.")
    assert [head for head in columns if head.startswith(beginnings)] == [
        *("kind", "test.accuracy_last_10.6", "test.accuracy_last_10.12"),
        *("train.flops", "train.seconds", "family"),
    ]
    cells = page.locator('[col-id="metrics.`test.accuracy_last_10.12`"][role=gridcell]')
    assert cells.all_inner_texts() == ["0.75", "0.125"]  # the best first; two runs, not three
    screenshots.show_charts(page, address, "test.accuracy_last_10.12")


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["mlflow", "prefect"])
def test_one_that_dies_is_told_and_ends_the_other(tmp_path, recorded, victim):
    running = Served(recorded(tmp_path / "project"))
    everything = warm_python.family(running.process.pid)[1:]
    word = "api_server.py" if victim == "prefect" else "mlflow"
    for process in everything:
        with contextlib.suppress(psutil.NoSuchProcess):  # some live for a moment
            line = " ".join(process.cmdline())
            if word in line and "keeper.py" not in line:
                process.kill()
    output = running.process.communicate(timeout=60)[0]
    assert running.process.returncode == 1
    assert "has ended by itself" in output
    assert ("Prefect" if victim == "prefect" else "MLflow") in output.partition("error:")[2]
    assert not psutil.wait_procs(everything, timeout=15)[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_both_end_with_the_make_that_began_them(tmp_path, recorded, number):
    made = recorded(tmp_path / "project")
    (made.path / "scripts").symlink_to(ROOT / "scripts")
    (made.path / ".venv").symlink_to(Path(sys.prefix))
    command = ["make", "-f", str(ROOT / "Makefile"), "-o", "install", "dashboards", "PORT=5700"]
    make = subprocess.Popen(command, cwd=made.path, env=environment(), stdout=subprocess.DEVNULL)
    file = made.path / FOLDER / DASHBOARDS
    try:
        wait_until(lambda: file.exists() and json.loads(file.read_text() or "{}"), 300)
        addresses = json.loads(file.read_text())
        assert addresses.keys() == {"mlflow", "prefect"}
    finally:
        everything = warm_python.family(make.pid)[1:]
        make.send_signal(number)
    make.wait(timeout=60)
    assert not psutil.wait_procs(everything, timeout=60)[1]
    assert not any(answers(address) for address in addresses.values())


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / ".prefect").touch()
    said = pytest.raises(ServerError, match=r"\.prefect, where runs of flows are recorded, cannot")
    with said, dashboards.announced(tmp_path):
        pytest.fail("it cannot be locked")


@pytest.mark.parametrize(
    ("store", "served_store"),
    [
        (None, "sqlite:///mlflow.db"),
        ("sqlite:////elsewhere/mlflow.db", "sqlite:////elsewhere/mlflow.db"),
        ("http://someone:secret@host:5000", None),
    ],
)
def test_what_is_kept_elsewhere_is_named_and_not_served(
    monkeypatch, capsys, tmp_path, store, served_store
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if store:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    asked = []

    class Nothing:
        def stop(self) -> None:
            pass

        def wait_until_up(self) -> None:
            pass

    def start_mlflow(root, store, port):
        asked.append(store)
        return "http://127.0.0.1:1", Nothing()

    monkeypatch.setattr(dashboards, "start_mlflow", start_mlflow)
    monkeypatch.setattr(dashboards, "prefect_api_url", lambda: "http://me:secret@other/api")
    monkeypatch.setattr(dashboards, "wait_for_an_end", lambda *_: 0)
    file = tmp_path / "server.json"
    assert dashboards.serve(tmp_path, file, 5000, 4200) == 0
    assert asked == ([served_store] if served_store else [])
    assert json.loads(file.read_text()) == ({"mlflow": "http://127.0.0.1:1"} if asked else {})
    said = capsys.readouterr().out
    assert "the flows are at http://other/api," in said
    assert ("the runs are at http://host:5000," in said) == (not served_store)
    assert "secret" not in said
