"""The rows of the table of faults in docs/orchestration.md, but those that name other tests."""

import json
import signal
import urllib.request

import psutil
import pytest

from tests.pipelines.tiny import FLOW, kill_its_server, project, record_of, stage, wait_until

pytestmark = pytest.mark.slow

STAGES = {
    # As our trainings do: a SIGTERM leaves a checkpoint, from which the next start goes on.
    "train": stage(
        "trap 'echo checkpoint > kept; exit 143' TERM; echo begun >> begun; "
        "if [ ! -e kept ]; then until [ -e go ]; do sleep 0.05; done; fi; echo done > trained.txt",
        (),
        ("trained.txt",),
    ),
    "evaluate": stage(
        "echo once >> evaluated; cat trained.txt > scores.txt", ("trained.txt",), ("scores.txt",)
    ),
}
ENDED = "('COMPLETED', 'FAILED', 'CRASHED', 'CANCELLED')"


@pytest.fixture
def made(tmp_path, empty_record):
    made = project(tmp_path / "project", STAGES)
    record_of(empty_record, made.path)
    return made


@pytest.fixture
def served(made, use):
    return use(made)


def has_begun(made, process):
    assert process.poll() is None, process.communicate()[0]
    return (made.path / "begun").exists()


def begin(made, *arguments):
    """Start a flow and wait until its training runs."""
    process = made.start(*FLOW, *arguments)
    wait_until(lambda: has_begun(made, process), 120)
    return process


def let_go_when_one_waits(made):
    """Start a second flow, and let the stage end once it waits for it."""
    said = []
    with made.start(*FLOW) as second:
        for line in second.stdout:
            said.append(line)
            if "another flow in this repository runs this: waiting for that" in line:
                (made.path / "go").touch()
    assert second.returncode == 0, said
    assert (made.path / "go").exists()


def left_running(made):
    """Processes of any kind that work in the project's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(made.path) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
        except psutil.Error:
            continue
    return found


def cancel_in_prefect(made):
    """Do what the button Cancel of the user interface does."""
    ((run,),) = made.ask("select id from flow_run where state_type = 'RUNNING'")
    body = json.dumps({"state": {"type": "CANCELLING"}}).encode()
    address = f"{made.environment['PREFECT_API_URL']}/flow_runs/{run}/set_state"
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=30).close()


@pytest.mark.parametrize(("by", "status"), [("SIGTERM", 143), ("SIGINT", 130), ("Prefect", 143)])
def test_a_stopped_flow_leaves_a_state_to_go_on_from(served, by, status):
    process = begin(served)
    if by == "Prefect":
        cancel_in_prefect(served)
    else:
        process.send_signal(signal.Signals[by])
    output = process.communicate(timeout=120)[0]
    assert process.returncode == status, output
    assert "stopped; the same command goes on from there" in output
    assert served.lines("kept") == ["checkpoint"]
    assert left_running(served) == []
    assert served.states() == ("Cancelled", {"train": "Cancelled"})
    assert served.ask(f"select name from task_run where state_type not in {ENDED}") == []
    if by == "SIGTERM":
        assert "2 stages: 2 ran" in served.flow()
        assert served.lines("begun") == ["begun", "begun"]
        assert served.status() == "{}"


SIGNALLED = ("-m", "tests.pipelines.signalled")


def test_a_signal_that_python_loses_stops_the_flow_all_the_same(served):
    output = served.run(*SIGNALLED, "in_a_finaliser", status=143)
    assert "Exception ignored" in output
    assert "stopped; the same command goes on from there" in output
    assert served.states() == ("Cancelled", {})
    assert served.lines("begun") == []


def test_a_signal_after_the_last_stage_leaves_a_flow_that_was_stopped(served):
    (served.path / "go").touch()
    output = served.run(*SIGNALLED, "after_the_last_stage", status=143)
    assert "2 stages: 2 ran" in output
    assert served.states() == ("Cancelled", {"train": "Completed", "evaluate": "Completed"})
    last = "(select id from flow_run order by created desc limit 1)"
    published = f"select key from artifact where key = 'stages' and flow_run_id = {last}"
    assert served.ask(published) == [("stages",)]


def test_a_signal_before_the_flow_is_prefects_leaves_no_run_open(made):
    output = made.run(*SIGNALLED, "before_the_flow_is_prefects", status=143)
    assert "Traceback" not in output
    assert made.states() == ("Crashed", {})
    assert left_running(made) == []


def test_two_flows_at_once_in_one_clone(served):
    first = begin(served)
    let_go_when_one_waits(served)
    output = first.communicate(timeout=120)[0]
    assert first.returncode == 0, output
    assert served.lines("begun") == ["begun"]
    assert served.lines("evaluated") == ["once"]
    assert served.status() == "{}"


def test_a_killed_flows_stage_is_finished_and_not_run_again(served):
    first = begin(served)
    first.kill()
    first.communicate()
    let_go_when_one_waits(served)
    assert served.lines("begun") == ["begun"]
    assert served.lines("evaluated") == ["once"]
    assert served.status() == "{}"


def test_prefects_server_is_killed_in_the_middle(made):
    process = begin(made)
    kill_its_server(process)
    (made.path / "go").touch()
    output = process.communicate(timeout=150)[0]
    assert process.returncode == 3, output
    assert "2 stages: 2 ran" in output
    assert "Prefect's record of this flow is not complete" in output
    assert "the same command shows every stage as cached" in output
    assert "Traceback" not in output
    assert made.status() == "{}"
    assert left_running(made) == []


def test_a_server_that_does_not_answer(made):
    made.environment["PREFECT_API_URL"] = "http://127.0.0.1:9/api"
    output = made.flow(status=2)
    (line,) = output.splitlines()
    assert line.startswith("error: PREFECT_API_URL=http://127.0.0.1:9/api does not answer")
    assert not (made.path / "begun").exists()
