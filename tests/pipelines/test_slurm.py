import contextlib
import functools
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.cluster.placement import Place, Placement, Pool
from pipelines.cluster.runners import runner_for
from pipelines.cluster.slurm import SlurmRunner
from pipelines.cluster.slurm_job import job_environment
from pipelines.dag import Stage
from pipelines.processes import StoppedError, allow_all, stop_all
from pipelines.running import InfrastructureError, StageFailedError
from tests.pipelines import fake_slurm
from tests.pipelines.clones import Clones, make_clones, run, stale
from tests.pipelines.tiny import wait_until

ROOT = Path(__file__).parents[2]
FIRST = itertools.count(1000, 100)


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "slurm"
    fake_slurm.install(folder)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    monkeypatch.setenv("FAKE_SLURM_FIRST", str(next(FIRST)))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IMPLICIT_MODELS_NODE", "one")
    monkeypatch.setattr("pipelines.cluster.slurm._ANSWER_PATIENCE", 0.2)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Clones:
    made = make_clones(tmp_path_factory.mktemp("made") / "clones")
    run(made.caller, "dvc", "repro", "make")
    return made


@pytest.fixture
def clones(made, tmp_path) -> Clones:
    return made.copy(tmp_path / "clones")


def runner(clones: Clones, *, max_requeues: int = 2, nodes: int = 1, gpus: int = 0, **environment):
    pool = Pool(
        kind="slurm",
        heartbeat_seconds=0.5,
        lost_after_seconds=5,
        checkpoint_seconds=0.2,
        max_requeues=max_requeues,
        slurm={"time": 10, "partition": "short", "setup": [f"cd {ROOT}"]},
    )
    place = Place(environment=environment, nodes=nodes, gpus=gpus)
    return SlurmRunner(clones.caller, "slurm", pool, place)


def jobs(slurm: Path) -> list[dict]:
    return [json.loads(file.read_text()) for file in sorted(slurm.glob("*.json"))]


def test_a_stage_runs_as_a_job(slurm, clones):
    log: list[str] = []
    outcome = runner(clones, gpus=1)(Stage("train@x"), log.append)
    assert (outcome.how, outcome.place) == ("ran", "one")
    assert set(stale(clones.caller)) == {"report"}
    (job,) = jobs(slurm)
    expected = {"partition": "short", "time": "10", "nodes": "1", "gpus-per-node": "1"}
    expected["no-requeue"] = ""  # Slurm would run it beside the one that is submitted again
    assert expected.items() <= job["options"].items()
    assert job["options"]["job-name"] == "train@x"
    assert "from the start" in log  # what the stage says


def test_no_shell_reads_a_value_and_nobody_else_the_jobs_files(slurm, clones, tmp_path):
    odd = f"a b'c\"d $(touch {tmp_path}/pwned) `touch {tmp_path}/pwned` ; touch {tmp_path}/pwned"
    place = runner(clones, MINE=f"{odd}\nand another line")
    pool = place.pool.replace(slurm={**place.pool.slurm, "additional_parameters": {"comment": odd}})
    SlurmRunner(clones.caller, "slurm", pool, place.place)(Stage("train@x"), lambda _: None)
    (job,) = jobs(slurm)
    assert shlex.split(job["options"]["comment"]) == [odd]
    folder = clones.caller / ".dvc" / "tmp" / "slurm"
    assert folder.stat().st_mode & 0o777 == 0o700
    scripts = [path.read_text() for path in folder.rglob("*.sh")]
    assert scripts and not any("and another line" in script for script in scripts)
    assert not (tmp_path / "pwned").exists()


def test_a_stages_own_error_is_not_tried_again(slurm, clones):
    with pytest.raises(StageFailedError, match="it cannot be done"):
        runner(clones, FAIL="1")(Stage("train@x"), print)
    assert len(jobs(slurm)) == 1


def test_a_job_that_slurm_takes_away_goes_on_in_the_next(slurm, clones, tmp_path):
    arrived = tmp_path / "arrived"
    log: list[str] = []
    warn = functools.partial(scancel, slurm, "--batch", "--signal=USR2")
    with once_there(arrived, warn):  # as Slurm does some time before a job's time is over
        outcome = runner(clones, STOP_AT="3", ARRIVED=str(arrived))(Stage("train@x"), log.append)
    assert outcome.how == "ran"
    assert len(jobs(slurm)) == 2
    assert "train@x lost its nodes; others go on from there" in log
    assert "continuing from 3" in log


@contextlib.contextmanager
def once_there(file: Path, act: Callable[[], None]) -> Iterator[None]:
    """Act beside a block as soon as a file is there."""

    def wait_and_act() -> None:
        wait_until(file.exists, 100)
        act()

    actor = threading.Thread(target=wait_and_act)
    actor.start()
    try:
        yield
    finally:
        actor.join()


def scancel(slurm: Path, *options: str) -> None:
    (job,) = slurm.glob("*.json")
    subprocess.run(["scancel", *options, job.stem], check=True)


@pytest.mark.parametrize("accounting", [False, True])
def test_a_job_that_dies_is_a_fault_of_the_infrastructure(
    slurm, clones, tmp_path, monkeypatch, accounting
):
    if accounting:
        monkeypatch.setenv("FAKE_SLURM_ACCOUNTING", "1")
    arrived = tmp_path / "arrived"
    kill = functools.partial(scancel, slurm, "--batch", "--signal=KILL")
    lost = pytest.raises(InfrastructureError, match="job .* of Slurm is FAILED")
    with once_there(arrived, kill), lost:
        runner(clones, STOP_AT="3", ARRIVED=str(arrived))(Stage("train@x"), lambda line: None)
    os.killpg(orphan(clones), 9)


def orphan(clones: Clones) -> int:
    """Find the process group of the stage of a job that was killed."""
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if str(entry.resolve()).startswith(f"{clones.caller}/.dvc/tmp/workspaces/"):
                return os.getpgid(int(entry.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError("no process is left")


def test_a_stopped_flow_ends_its_job(slurm, clones, tmp_path):
    arrived = tmp_path / "arrived"
    try:
        with once_there(arrived, stop_all), pytest.raises(StoppedError):
            runner(clones, STOP_AT="3", ARRIVED=str(arrived))(Stage("train@x"), lambda line: None)
    finally:
        allow_all()
    (job,) = jobs(slurm)
    assert not fake_slurm.alive(job["pid"])
    assert (clones.remote / "checkpoints/x/train/identity/step_3/progress.json").exists()


KILLED = """
import json, sys
from pathlib import Path
from typing import Any
from pipelines.dag import Stage
from tests.pipelines.clones import Clones
from tests.pipelines.test_slurm import runner
runner(Clones(Path(sys.argv[1])), **json.loads(sys.argv[2]))(Stage("train@x"), print)
"""


def killed(clones: Clones, place: dict[str, str]) -> subprocess.Popen:
    """Start what is going to be killed."""
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, str(clones.root), json.dumps(place)], cwd=ROOT
    )


def test_a_killed_flow_leaves_its_job_to_the_next(slurm, clones, tmp_path):
    arrived, go_on = tmp_path / "arrived", tmp_path / "go_on"
    place: Any = {"STOP_AT": "3", "ARRIVED": str(arrived), "GO_ON": str(go_on)}
    flow = killed(clones, place)
    wait_until(arrived.exists, 100)
    flow.kill()
    flow.wait()
    log: list[str] = []
    with once_there(arrived, go_on.touch):
        outcome = runner(clones, **place)(Stage("train@x"), log.append)
    assert (outcome.how, len(jobs(slurm))) == ("ran", 1)
    assert "from the start" in log and stale(clones.caller).keys() == {"report"}
    assert list((clones.caller / ".dvc" / "tmp" / "submissions").iterdir()) == []


def test_a_left_job_that_was_ended_is_not_waited_for(slurm, clones, tmp_path):
    arrived = tmp_path / "arrived"
    place: Any = {"STOP_AT": "3", "ARRIVED": str(arrived)}
    flow = killed(clones, place)
    wait_until(arrived.exists, 100)
    flow.kill()
    flow.wait()
    scancel(slurm)
    log: list[str] = []
    assert runner(clones, **place)(Stage("train@x"), log.append).how == "ran"
    assert len(jobs(slurm)) == 2 and "continuing from 3" in log


def test_what_was_asked_for_otherwise_is_told_and_left_alone(slurm, clones, tmp_path):
    arrived = tmp_path / "arrived"
    flow = killed(clones, {"STOP_AT": "3", "ARRIVED": str(arrived)})
    wait_until(arrived.exists, 100)
    flow.kill()
    flow.wait()
    (job,) = slurm.glob("*.json")
    log: list[str] = []
    ending = ["scancel", job.stem]  # by the user, as the line says
    other = threading.Timer(1.0, subprocess.run, (ending,), {"check": True})
    other.start()
    assert runner(clones)(Stage("train@x"), log.append).how == "ran"
    other.join()
    (line,) = [line for line in log if "a flow that was killed" in line]
    assert line.endswith(f"where that still runs, end it: scancel {job.stem}")


def test_where_the_user_may_have_no_more_jobs_a_stage_waits(slurm, clones):
    (slurm / "full").touch()
    log: list[str] = []
    assert runner(clones)(Stage("train@x"), log.append).how == "ran"
    assert "Slurm takes no more jobs of yours at present: train@x waits for that" in log
    assert len(jobs(slurm)) == 1


def test_a_job_that_the_user_cancels_is_not_submitted_again(slurm, clones, tmp_path):
    arrived = tmp_path / "arrived"
    ended = pytest.raises(StageFailedError, match="was ended by scancel; the same command goes on")
    with once_there(arrived, functools.partial(scancel, slurm)), ended:
        runner(clones, STOP_AT="3", ARRIVED=str(arrived))(Stage("train@x"), lambda line: None)
    assert len(jobs(slurm)) == 1


def test_options_that_slurm_does_not_have_are_named(slurm, clones):
    pool = Pool(kind="slurm", slurm={"time": 5, "partitoin": "x"})
    placement = Placement(pools={"slurm": pool}, stages={"*": Place(pool="slurm")})
    with pytest.raises(StageFailedError, match="pools.slurm.slurm: .*partitoin"):
        runner_for(Stage("train@x"), placement, clones.caller)(Stage("train@x"), print)


def test_a_job_that_slurm_refuses_is_told_in_its_words(slurm, clones):
    pool = Pool(kind="slurm", slurm={"time": 5, "partition": "none"})
    with pytest.raises(StageFailedError, match="pools.slurm.slurm.: .*Invalid partition name"):
        SlurmRunner(clones.caller, "slurm", pool, Place())(Stage("train@x"), print)


def test_a_job_that_nobody_knows_any_more_is_lost(slurm, clones, tmp_path):
    arrived = tmp_path / "arrived"

    def forget() -> None:
        (file,) = slurm.glob("*.json")
        os.kill(json.loads(file.read_text())["pid"], 9)
        wait_until(lambda: json.loads(file.read_text())["state"] == "FAILED")
        file.unlink()

    lost = pytest.raises(InfrastructureError, match="job .* of Slurm is FORGOTTEN")
    with once_there(arrived, forget), lost:
        runner(clones, STOP_AT="3", ARRIVED=str(arrived))(Stage("train@x"), lambda line: None)
    os.killpg(orphan(clones), 9)


def test_without_slurm_it_is_said(clones, tmp_path, monkeypatch):
    git = shutil.which("git")
    assert git is not None
    (tmp_path / "git").symlink_to(git)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StageFailedError, match="not on PATH; start the flow on a login node"):
        runner(clones)(Stage("train@x"), print)


def test_what_a_training_of_several_nodes_is_started_with():
    assert job_environment(Place(), {}) == {}
    assert job_environment(Place(gpus=4), {}) == {
        "IMPLICIT_MODELS_TORCHRUN": "--standalone --nproc-per-node=4"
    }
    slurm = {"SLURM_JOB_ID": "31", "SLURMD_NODENAME": "node7"}
    assert job_environment(Place(gpus=4, nodes=2), slurm) == {
        "IMPLICIT_MODELS_TORCHRUN": "--nnodes=2 --rdzv-backend=c10d --rdzv-id=31 "
        "--rdzv-endpoint=node7:20031 --nproc-per-node=4",
        "IMPLICIT_MODELS_LAUNCHER": "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 "
        "--kill-on-bad-exit=1",
    }
    cores = job_environment(Place(nodes=2), slurm | {"SLURM_CPUS_PER_TASK": "16"})
    assert "--ntasks-per-node=1 --cpus-per-task=16 " in cores["IMPLICIT_MODELS_LAUNCHER"]


START = """
from stages.training.launching import start_processes
start_processes('train_free', 'x')
"""


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("echo 'two words'", f"two words {sys.executable} -m torch.distributed.run --nnodes=2 "
        "-m stages.training.train_free x"),
        ("no-such-launcher", "no-such-launcher is not on PATH; allowed is a command, such as"),
        ("'", "No closing quotation; allowed is a command"),
    ],
)  # fmt: skip
def test_a_launcher_is_put_in_front_of_torchrun(monkeypatch, launcher, expected):
    monkeypatch.setenv("IMPLICIT_MODELS_TORCHRUN", "--nnodes=2")
    monkeypatch.setenv("IMPLICIT_MODELS_LAUNCHER", launcher)
    command = [sys.executable, "-c", START]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert expected in done.stdout + done.stderr
    assert (done.returncode == 0) == launcher.startswith("echo")


TWO = """
import shlex
import sys
from pathlib import Path
from typing import Any
from stages.training.launching import start_processes
start_processes("two", "x")
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
if dist.get_rank() == 0:
    Path("total.txt").write_text(f"{dist.get_world_size()} {total.item()}")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_stage_on_two_nodes_meets_through_srun_and_torchrun(slurm, tmp_path):
    command = "python -m stages.training.two"
    stage = {"two": {"cmd": command, "deps": ["stages"], "outs": ["total.txt"]}}
    files = {
        "dvc.yaml": json.dumps({"stages": stage}),
        "stages/__init__.py": "",
        "stages/training/launching.py": (ROOT / "stages/training/launching.py").read_text(),
        "stages/training/__init__.py": "",
        "stages/training/two.py": TWO,
    }
    clones = make_clones(tmp_path / "clones", files)
    runner(clones, nodes=2)(Stage("two"), print)
    assert (clones.caller / "total.txt").read_text() == "2 3.0"


KEEP = """
import os, pathlib, signal, sys, time
kept = pathlib.Path(os.environ["KEPT"], os.environ["SLURM_PROCID"])
def keep(number, frame):
    time.sleep(0.5)  # as long as a checkpoint takes
    kept.touch()
    sys.exit(1)
ready = kept.with_suffix(".ready")
if not kept.exists():
    if ready.exists():
        sys.exit("nothing was kept")
    signal.signal(signal.SIGTERM, keep)
    ready.touch()
    time.sleep(600)
pathlib.Path("done.txt").touch()
"""


def test_a_job_of_two_nodes_keeps_what_it_has_when_it_is_warned(slurm, tmp_path):
    command = "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 python keep.py"
    stage = {"keep": {"cmd": command, "deps": ["keep.py"], "outs": ["done.txt"]}}
    files = {"dvc.yaml": json.dumps({"stages": stage}), "keep.py": KEEP}
    clones = make_clones(tmp_path / "clones", files)
    kept = tmp_path / "kept"
    kept.mkdir()

    def warn() -> None:
        wait_until((kept / "0.ready").exists)
        scancel(slurm, "--batch", "--signal=USR2")

    with once_there(kept / "1.ready", warn):
        runner(clones, nodes=2, KEPT=str(kept))(Stage("keep"), print)
    assert (kept / "0").exists() and (kept / "1").exists()
    assert len(jobs(slurm)) == 2
