import fcntl
import json
import os
import signal
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    temporary_settings,
)
from prefect.states import Completed, Running

from pipelines.server.embedded import (
    DASHBOARDS,
    check_given_server,
    dashboards_address,
    without_proxy,
)
from pipelines.server.local_server import (
    FOLDER,
    ServerError,
    answers,
    bound_socket,
    prefect_server,
    start_kept,
)
from pipelines.server.open_runs import close_left_over_runs, close_open_runs, own_tag
from tests import warm_python
from tests.pipelines.tiny import Project, record_of, wait_until

BLOCK = ("-m", "tests.pipelines.block")
SLEEPER = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"


@pytest.fixture
def no_server(monkeypatch):
    """No server named by the environment, whatever the machine's has."""
    for name in list(os.environ):
        if name.startswith("PREFECT_"):
            monkeypatch.delenv(name)


def servers() -> set[int]:
    """Processes of servers that somebody keeps."""
    found = set()
    for process in psutil.process_iter():
        try:
            if any(word.endswith(("keeper.py", "api_server.py")) for word in process.cmdline()):
                found.add(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def keeper(root: Path) -> bool:
    """Whether a server of this repository's database is alive."""
    for pid in servers():
        try:
            if str(root) in psutil.Process(pid).environ().get(
                "PREFECT_SERVER_DATABASE_CONNECTION_URL", ""
            ):
                return True
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return False


@pytest.mark.slow
def test_a_block_leaves_everything_recorded_and_nothing_running(tmp_path, empty_record):
    record_of(empty_record, tmp_path)
    project = Project(tmp_path)
    output = project.run(*BLOCK)
    assert output.endswith("left\n")
    assert "Traceback" not in output.partition("left")[2]
    assert "View at" not in output  # there is no page to view
    flow, tasks = project.states()
    assert flow == "Completed"
    assert tasks == {"0": "Completed", "1": "Completed", "2": "Failed", "3": "Completed"}
    assert not keeper(tmp_path)
    # The next flow in the repository closes what a killed one has left, whose server ends with it.
    process = project.start(*BLOCK, "hang")
    wait_until(lambda: (tmp_path / "running").exists())
    (tmp_path / "running").unlink()
    wait_until(lambda: (tmp_path / "running").exists() or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert project.states()[0] == "Running"
    wait_until(lambda: not keeper(tmp_path))
    project.run(*BLOCK)
    query = "select state_name from flow_run order by created"
    assert [state for (state,) in project.ask(query)] == ["Completed", "Crashed", "Completed"]
    unended = "select count(*) from task_run where state_type in ('RUNNING', 'PENDING')"
    assert project.ask(unended) == [(0,)]
    # A tag tells whose they are; tasks would wait for the server because of it.
    tags = {json.loads(text)[0] for (text,) in project.ask("select tags from flow_run")}
    assert tags == {own_tag(tmp_path)}
    assert set(project.ask("select tags from task_run")) == {("[]",)}


@pytest.mark.slow
def test_runs_of_others_are_left_alone(tmp_path, use):
    address = use(Project(tmp_path)).environment["PREFECT_API_URL"]
    here = own_tag(tmp_path)
    tags = {"own": [here, "x"], "other clone": [own_tag(tmp_path / "other")]}
    tags |= {"other machine": [f"far:{tmp_path}"], "untagged": []}

    @flow
    def work():
        pass

    @task
    def part():
        pass

    def states(client, name):
        run, child = client.read_flow_run(runs[name].id), client.read_task_run(tasks[name])
        return run.state_name, child.state_name

    with temporary_settings({PREFECT_API_URL: address}), get_client(sync_client=True) as client:
        runs, tasks = {}, {}
        for name, its in tags.items():
            runs[name] = client.create_flow_run(work, tags=its, state=Running())
            key = {"task": part, "flow_run_id": runs[name].id, "dynamic_key": "0"}
            tasks[name] = client.create_task_run(**key, state=Running()).id
        close_left_over_runs(here)
        assert states(client, "own") == ("Crashed", "Crashed")
        others = [name for name in tags if name != "own"]
        assert [states(client, name) for name in others] == [("Running", "Running")] * 3
        # Nor are their tasks that a flow has left behind for a moment.
        for name in others:
            client.set_flow_run_state(runs[name].id, Completed(), force=True)
        close_open_runs(here, patience=0)
        assert [states(client, name) for name in others] == [("Completed", "Running")] * 3


@pytest.mark.slow
def test_a_server_wants_the_password_that_is_set(tmp_path, empty_record, no_server, monkeypatch):
    record_of(empty_record, tmp_path)
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "reader:secret")
    own = {"PREFECT_SERVER_API_AUTH_STRING": "reader:secret"}
    assert "ran" in Project(tmp_path, own).run(*BLOCK)
    with warm_python.as_own(), prefect_server(tmp_path) as (address, server):
        server.wait_until_up()
        settings = {PREFECT_API_URL: address, PREFECT_API_AUTH_STRING: "reader:wrong"}
        with (
            temporary_settings(settings),
            pytest.raises(ServerError, match="answers 401; set PREFECT_API_AUTH_STRING"),
        ):
            check_given_server(address)


@contextmanager
def stranger(status: int):
    """Serve nothing but a status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_named_server_that_is_not_there_is_told_at_once(tmp_path):
    with bound_socket() as free:
        address = f"http://me:secret@127.0.0.1:{free.getsockname()[1]}/api"
    output = Project(tmp_path, {"PREFECT_API_URL": address}).run(*BLOCK, status=1)
    last = output.strip().splitlines()[-1]
    assert "does not answer" in last
    assert "unset PREFECT_API_URL" in last
    assert "secret" not in last
    assert not (tmp_path / FOLDER / "prefect.db").exists()


def test_what_answers_but_is_no_api_is_told(no_server):
    with (
        stranger(404) as address,
        temporary_settings({PREFECT_API_URL: address}),
        pytest.raises(ServerError, match=f"PREFECT_API_URL={address}/api"),
    ):
        check_given_server(address)


def test_dashboards_count_while_they_hold_their_lock(tmp_path):
    assert dashboards_address(tmp_path) is None
    file = tmp_path / FOLDER / DASHBOARDS
    file.parent.mkdir()
    with stranger(200) as address:
        file.write_text(json.dumps({"prefect": address}))
        assert dashboards_address(tmp_path) is None  # left over from some that were killed
        with file.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert dashboards_address(tmp_path) == address
            file.write_text("{}")  # on their way up
            assert dashboards_address(tmp_path) is None
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        file.write_text(json.dumps({"prefect": address}))
        assert dashboards_address(tmp_path) is None  # nobody answers


def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path):
    code = "import sys; print('working'); sys.exit('no room on the disk')"
    server = start_kept(
        "It",
        [sys.executable, "-c", code],
        health="http://127.0.0.1:1/health",
        environment=os.environ,
        folder=tmp_path,
        log=tmp_path / "log",
    )
    with pytest.raises(ServerError, match=r"It did not start; its last line: no room on the disk"):
        server.wait_until_up()
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_kept_command_and_its_children_end_with_their_parent(tmp_path, number):
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPER!r}])"
    parent = (
        "import os, sys, time; from pathlib import Path\n"
        "from pipelines.server.local_server import start_kept\n"
        f"start_kept('It', [sys.executable, '-c', {child!r}], health='', environment=os.environ,"
        " folder=Path('.'), log=Path('log'))\n"
        "time.sleep(600)\n"
    )
    process = Project(tmp_path).start("-c", parent)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    sleeper = psutil.Process(int((tmp_path / "pid").read_text()))
    process.send_signal(number)
    process.communicate()
    psutil.wait_procs([sleeper], timeout=30)
    assert not sleeper.is_running()


def test_ports_that_are_taken_are_passed_over():
    with bound_socket() as first:
        taken = first.getsockname()[1]
        with bound_socket(taken) as second:
            assert taken < second.getsockname()[1] < taken + 100
            assert second.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ServerError, match="no free port"):
            bound_socket(taken, tries=1)


def test_a_proxy_is_passed_by_on_this_machine(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    with stranger(200) as address:
        assert answers(address)
    with without_proxy():
        assert os.environ["NO_PROXY"] == "example.org,127.0.0.1"
        assert os.environ["no_proxy"] == "127.0.0.1"
    assert os.environ["NO_PROXY"] == "example.org"
    assert "no_proxy" not in os.environ
