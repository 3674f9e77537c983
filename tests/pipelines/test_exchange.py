import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pipelines.cluster.assignment import Assignment, Result, do_assignment
from pipelines.cluster.exchange import Request, make_request, receive, take_inputs
from pipelines.cluster.placement import Place
from pipelines.running import InfrastructureError, StageFailedError
from tests.pipelines.clones import NAMES, Clones, commit, run, stale
from tests.pipelines.tiny import wait_until


def through(value):
    """Send something as JSON does."""
    return json.loads(json.dumps(value))


def run_on(node: Path, clones: Clones, name: str, log=None, **environment: str) -> Result:
    request = make_request(clones.caller, name)
    content = Assignment(request, Place(environment=environment), 0.05).to_dict()
    log = log if log is not None else []
    result = do_assignment(node, Assignment.from_dict(through(content)), log.append)
    receive(clones.caller, name, through(result.to_dict())["entry"])
    return Result.from_dict(through(result.to_dict()))


def test_stages_that_run_elsewhere_leave_what_they_leave_here(clones, tmp_path):
    alone = tmp_path / "alone"
    shutil.copytree(clones.caller, alone)
    run(alone, "dvc", "repro")
    nodes = [clones.clone("one"), clones.clone("two")]
    for number, name in enumerate(NAMES):  # each has to get its inputs from the other
        result = run_on(nodes[number % 2], clones, name)
        assert (result.outcome.how, result.outcome.place) == ("ran", "one")
    assert stale(clones.caller) == {}
    assert (clones.caller / "dvc.lock").read_text() == (alone / "dvc.lock").read_text()
    for file in ("data/x/part/a", "models/m.txt", "results/runs/m.json", "report.txt"):
        assert (clones.caller / file).read_bytes() == (alone / file).read_bytes()
    for node in nodes:  # nothing is left there but DVC's cache
        assert run(node, "git", "status", "--porcelain") == ""
        assert not list((node / ".dvc/tmp/workspaces/one").glob("*/"))


def test_a_record_of_the_run_comes_back_too(clones):
    node = clones.clone("one")
    for name in NAMES[:2]:
        run_on(node, clones, name)
    run(clones.caller, "rm", "-r", "dvc.lock", "models", "results")
    output = run(clones.caller, "dvc", "repro", "train@x")
    assert "Stage 'train@x' is cached - skipping run" in output


def test_what_one_node_has_published_the_next_does_not_do_again(clones):
    run_on(clones.clone("one"), clones, "make")
    request = make_request(clones.caller, "train@x")
    assignment = Assignment(request, Place(), 1.0)
    first = do_assignment(clones.root / "one", assignment, lambda line: None)
    second = do_assignment(clones.clone("two"), assignment, lambda line: None)
    assert (first.outcome.how, second.outcome.how) == ("ran", "restored")
    assert first.entry == second.entry


def test_parameters_are_the_callers(clones):
    node = clones.clone("one")
    (clones.caller / "params.yaml").write_text("amount: 5\n")
    run_on(node, clones, "make")
    assert (clones.caller / "data/x/part/a").read_text() == "xxxxx"
    assert (node / "params.yaml").read_text() == "amount: 3\n"


def test_a_later_commit_is_fetched(clones):
    node = clones.clone("one")
    (clones.caller / "make.py").write_text((clones.caller / "make.py").read_text() + "# later\n")
    commit(clones.caller)
    assert run_on(node, clones, "make").outcome.how == "ran"


def test_a_commit_that_is_nowhere_is_named(clones):
    node = clones.clone("one")
    request = dataclasses.replace(make_request(clones.caller, "make"), commit="1" * 40)
    with pytest.raises(
        StageFailedError, match="the commit 1111111111 is neither in one:.*git push"
    ):
        do_assignment(node, Assignment(request, Place(), 1.0), print)


def test_code_that_is_not_committed_cannot_travel(clones):
    (clones.caller / "make.py").write_text("print()\n")
    with pytest.raises(
        StageFailedError, match="stage make: make.py differs from the commit .*commit it"
    ):
        make_request(clones.caller, "make")


def test_code_that_differs_on_the_node_is_named(clones):
    node = clones.clone("one")
    (node / "make.py").write_text("print()\n")
    with pytest.raises(StageFailedError, match="make.py is not here what it is where"):
        take_inputs(node, make_request(clones.caller, "make"))


def test_without_a_remote_it_is_said_how_to_get_one(clones):
    (clones.caller / ".dvc" / "config.local").unlink()
    with pytest.raises(StageFailedError, match="no DVC remote .*dvc remote add --default"):
        make_request(clones.caller, "make")


def test_a_remote_that_has_lost_a_file_is_a_fault_of_the_infrastructure(clones):
    node = clones.clone("one")
    run_on(node, clones, "make")
    request = make_request(clones.caller, "train@x")
    shutil.rmtree(clones.remote / "files")
    shutil.rmtree(node / ".dvc" / "cache")
    with pytest.raises(InfrastructureError, match="train@x"):
        do_assignment(node, Assignment(request, Place(), 1.0), lambda line: None)


def test_a_node_gets_whole_outputs_and_the_metrics_before(clones):
    node = clones.clone("one")
    run_on(node, clones, "make")
    assert set(make_request(clones.caller, "train@x").inputs) == {"data/x"}  # it needs a part
    run_on(node, clones, "train@x")
    assert set(make_request(clones.caller, "report").inputs) == {"results/runs"}


def test_a_request_survives_json(clones):
    request = make_request(clones.caller, "make")
    assert Request.from_dict(through(request.to_dict())) == request
    assert request.parameters == {"params.yaml": "amount: 3\n"}
    assert request.inputs == {}


def test_a_stage_that_fails_leaves_no_workspace(clones):
    node = clones.clone("one")
    run_on(node, clones, "make")
    with pytest.raises(StageFailedError, match="it cannot be done"):
        run_on(node, clones, "train@x", FAIL="1")
    assert not list((node / ".dvc/tmp/workspaces/one").glob("*/"))


NODE = """
import json, pathlib, signal, sys
from pipelines.cluster.assignment import Assignment, do_assignment
from pipelines.running import stop_all
signal.signal(signal.SIGTERM, lambda number, frame: stop_all())
content = json.loads(pathlib.Path(sys.argv[2]).read_text())
log = lambda line: print(line, flush=True)
do_assignment(pathlib.Path(sys.argv[1]), Assignment.from_dict(content), log)
"""


@pytest.mark.parametrize("is_asked", [False, True], ids=["killed", "asked"])
def test_a_training_goes_on_where_another_node_has_ended(clones, tmp_path, is_asked):
    run_on(clones.clone("one"), clones, "make")
    request = make_request(clones.caller, "train@x")
    stop = {"STOP_AT": "3", "ARRIVED": str(tmp_path / "arrived")}
    # Where a node is asked to stop there is time to copy what is there.
    assignment = Assignment(request, Place(environment=stop), 60.0 if is_asked else 0.05)
    (tmp_path / "assignment.json").write_text(json.dumps(assignment.to_dict()))
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, str(clones.root / "one"), str(tmp_path / "assignment.json")],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert node.stdout is not None
    complete = clones.remote / "checkpoints/x/train/identity/step_3/progress.json"
    if is_asked:
        wait_until(lambda: (tmp_path / "arrived").exists() or node.poll() is not None)
        node.terminate()
    else:
        for line in node.stdout:
            if "step_3 is in the remote" in line:
                break
        for process in [psutil.Process(node.pid), *psutil.Process(node.pid).children(True)]:
            process.kill()
    node.communicate()
    assert complete.exists()
    assert not list(complete.parents[1].glob("step_2/*"))  # a remote may keep an empty folder

    log: list[str] = []
    result = run_on(clones.clone("two"), clones, "train@x", log)
    assert "checkpoints/x/train/identity/step_3 was fetched from the remote" in log
    assert "continuing from 3" in log
    assert result.outcome.how == "ran"
    assert not (clones.remote / "checkpoints/x/train/identity").exists()
    assert not (clones.root / "two/checkpoints/x").exists()
    assert set(stale(clones.caller)) == {"report"}
