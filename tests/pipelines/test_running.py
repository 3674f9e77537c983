import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import zc.lockfile

from pipelines import dvc_files, processes, running
from pipelines.dag import Stage, read_dag
from pipelines.presets import ParametersError, parameters_in_use
from pipelines.processes import lines_of, run_process
from pipelines.running import InfrastructureError, LocalRunner, StageFailedError, StoppedError
from tests.pipelines.tiny import project, stage, wait_until

WRITING_ON_A_FULL_DISK = (
    "import errno, os; raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'full.txt')"
)
STAGES = {
    "good": stage("echo once >> runs; cat given.txt > good.txt", ("given.txt",), ("good.txt",)),
    "bad": stage("echo this is why; exit 7", (), ("bad.txt",)),
    "killed": stage("kill -9 $$", (), ("killed.txt",)),
    "process_killed": stage(  # of two, by torchrun (for which $$ is $), which itself exits with 1
        f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 --no-python "
        "sh -c 'if [ $RANK = 1 ]; then kill -9 $$$$; fi; sleep 30'",
        (),
        ("process_killed.txt",),
    ),
    "patient": stage("echo $TORCH_ELASTIC_SHUTDOWN_TIMEOUT > patient.txt", (), ("patient.txt",)),
    "hung_up": stage("exit 129", (), ("hung_up.txt",)),
    "full": stage(f'{sys.executable} -c "{WRITING_ON_A_FULL_DISK}"', (), ("full.txt",)),
    "trained": stage(
        "trap 'echo checkpoint > kept; exit 143' TERM; touch begun; "
        "if [ ! -e kept ]; then while true; do sleep 0.05; done; fi; echo done > trained.txt",
        (),
        ("trained.txt",),
    ),
    "stubborn": stage(
        "trap '' TERM; echo $$ > process; while true; do sleep 0.05; done", (), ("stubborn.txt",)
    ),
}

OTHERS: set[int] = set()


@pytest.fixture
def made(tmp_path):
    running.allow_all()
    made = project(tmp_path / "project", STAGES)
    (made.path / "given.txt").write_text("first")
    yield made
    running.allow_all()


class Background(threading.Thread):
    """A stage that is run in a thread, and what came of it."""

    def __init__(self, root: Path, name: str):
        super().__init__(daemon=True)
        self.lines: list[str] = []
        self.result = None
        self.error = None
        self._call = lambda: LocalRunner(root)(Stage(name), self.lines.append)
        self.start()

    def run(self):
        try:
            self.result = self._call()
        except Exception as error:
            self.error = error

    def done(self):
        self.join(60)
        assert not self.is_alive()
        return self


def run(made, name):
    lines = []
    return LocalRunner(made.path)(Stage(name), lines.append), lines


def descendants():
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.pid not in OTHERS and child.is_running()]


@pytest.fixture(autouse=True)
def others():
    """Leave out what tests before these have started and still runs, such as a fork server."""
    OTHERS.clear()
    OTHERS.update(child.pid for child in psutil.Process().children(recursive=True))


def test_ran_then_cached_then_restored(made):
    outcome, lines = run(made, "good")
    assert (outcome.how, outcome.place) == ("ran", "here")
    assert outcome.seconds > 0
    assert lines[0] == "Running stage 'good':"
    assert not any("git add" in line or "dvc push" in line for line in lines)
    assert run(made, "good")[0].how == "cached"
    (made.path / "good.txt").unlink()
    assert run(made, "good")[0].how == "restored"
    assert (made.path / "good.txt").read_text() == "first"
    assert made.lines("runs") == ["once"]


def test_torchrun_has_nearly_the_two_minutes_that_a_stage_has_unless_it_is_told(made, monkeypatch):
    run(made, "patient")
    assert made.lines("patient.txt") == ["110"]
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600")
    (made.path / "dvc.lock").unlink()
    run(made, "patient")
    assert made.lines("patient.txt") == ["600"]


def test_a_stages_own_error(made):
    with pytest.raises(StageFailedError) as caught:
        run(made, "bad")
    message = str(caught.value)
    assert message.startswith("stage bad failed with exit status 7\n")
    assert "    this is why\n" in message
    assert "dvc repro --single-item bad" in message


def test_a_stage_that_dvc_does_not_know(made):
    with pytest.raises(StageFailedError, match="'unknown'"):
        run(made, "unknown")


@pytest.mark.parametrize(
    ("name", "by"),
    [("killed", "SIGKILL"), ("process_killed", "SIGKILL"), ("hung_up", "SIGHUP")],
)
def test_a_killed_stage_is_a_fault_of_the_infrastructure(made, name, by):
    with pytest.raises(InfrastructureError, match=f"stage {name} was ended by {by} from outside"):
        run(made, name)


def test_disk_full(made):
    with pytest.raises(StageFailedError) as caught:
        run(made, "full")
    assert "No space left on device" in str(caught.value)
    assert "the disk is full: make room" in str(caught.value)


def test_a_stopped_stage_keeps_what_it_has_and_goes_on(made):
    stage = Background(made.path, "trained")
    wait_until((made.path / "begun").exists)
    running.stop_all()
    stage.done()
    assert isinstance(stage.error, StoppedError)
    assert made.lines("kept") == ["checkpoint"]
    assert descendants() == []
    with pytest.raises(StoppedError):
        run(made, "good")

    running.allow_all()
    assert run(made, "trained")[0].how == "ran"
    assert made.lines("trained.txt") == ["done"]


def test_patience_ends(made):
    stage = Background(made.path, "stubborn")
    wait_until(lambda: made.lines("process"))
    process = psutil.Process(int(made.lines("process")[0]))
    running.stop_all(patience=100)
    running.stop_all(patience=0)
    stage.done()
    assert isinstance(stage.error, StoppedError)
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert descendants() == []


def test_dvcs_own_lock_is_waited_for(made):
    folder = made.path / ".dvc" / "tmp"
    folder.mkdir()
    lock = zc.lockfile.LockFile(str(folder / "lock"))
    stage = Background(made.path, "good")
    wait_until(descendants)
    (command,) = descendants()
    # DVC itself gives up after three seconds.
    wait_until(lambda: time.time() - command.create_time() > 6 or not command.is_running())
    assert command.is_running()
    lock.close()
    assert stage.done().error is None
    assert stage.result.how == "ran"


def test_files_that_another_command_works_on_are_waited_for(made, monkeypatch):
    monkeypatch.setattr(running, "_BUSY_SECONDS", 0.1)
    assert run(made, "good")[0].how == "ran"
    (made.path / "given.txt").write_text("second")
    path = made.path / ".dvc" / "tmp" / "rwlock"
    writer = {"pid": os.getpid(), "cmd": "another command"}
    path.write_text(json.dumps({"write": {str(made.path / "given.txt"): writer}, "read": {}}))
    stage = Background(made.path, "good")
    waiting = "another DVC command works on its files: waiting for that"
    wait_until(lambda: waiting in stage.lines)
    path.unlink()
    assert stage.done().result.how == "ran"
    assert stage.lines.count(waiting) == 1


CUT_OFF = [
    (".dvc/tmp/rwlock", '{"write": {'),
    ("dvc.lock", "schema: '2.0'\nstages:\n  good:\n    cm"),
    (".dvc/tmp/rwlock", ""),
    (".dvc/tmp/rwlock", "[" * 100_000),
    ("dvc.lock", ""),
    ("dvc.lock", "\x00\x00"),
    ("dvc.lock", "schema: '2.0'\nstages:\n  good:\n    cmd: echo\n    deps:\n    - pa"),
    ("dvc.lock", "[" * 200_000),  # which ends the process that loads it
    ("dvc.lock", "schema: '3.0'"),
    ("dvc.lock", "schema: '2.0'\nstages:\n  good:\n    cmd: echo\n    parms: {}"),
    ("dvc.lock", "schema: '2.0'\nstages:\n  good: {cmd: echo, deps: [{path: a, size: x12}]}"),
    (".dvc/tmp/rwlock", '{"read": 3}'),
]


@pytest.mark.parametrize(("name", "left"), CUT_OFF)
def test_what_of_dvcs_files_is_cut_off(tmp_path, monkeypatch, name, left):
    monkeypatch.setattr(dvc_files, "_WRITING_SECONDS", 0.0)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(left)
    (said,) = dvc_files.set_damaged_aside(tmp_path)
    assert said.startswith(f"{name} was cut off")
    assert not path.exists()
    assert dvc_files.set_damaged_aside(tmp_path) == []


@pytest.mark.parametrize(("name", "left"), CUT_OFF[:2])
def test_what_a_killed_dvc_has_cut_off_is_set_aside(made, name, left):
    """And nothing is run again for it."""
    path = made.path / name
    assert run_here(made).how == "ran"
    path.write_text(left)
    lines: list[str] = []
    assert run_here(made, lines.append).how in ("cached", "restored")
    assert [line for line in lines if "cut off by a process that was killed" in line]
    assert (made.path / "runs").read_text() == "once\n"
    kept = made.path / ".dvc" / "tmp" / f"{path.name}.damaged"
    assert kept.read_text() == left

    path.write_text(left)
    assert "good" in read_dag(made.path)
    path.write_text(left)
    command = [sys.executable, "-m", "pipelines.dvc_files"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    said = [
        subprocess.check_output(command, cwd=made.path, env=environment, text=True)
        for _ in range(2)
    ]
    assert f"{name} was cut off" in said[0] and said[1] == ""


def test_claims_of_another_program_with_the_same_number_are_void(tmp_path, monkeypatch):
    """Numbers of processes come again: after a restart, and in every container."""
    monkeypatch.setattr(dvc_files, "_WRITING_SECONDS", 0.0)
    path = tmp_path / ".dvc" / "tmp" / "rwlock"
    path.parent.mkdir(parents=True)

    def claims(*numbers):
        claim = [{"pid": number, "cmd": "dvc repro"} for number in numbers]
        path.write_text(json.dumps({"write": {"a": claim[0]}, "read": {"b": claim[1:]}}))
        return dvc_files.set_damaged_aside(tmp_path)

    other = subprocess.Popen(["sleep", "60"])
    gone = subprocess.Popen(["true"])
    gone.wait()
    try:
        assert claims(os.getpid(), other.pid) == []
        assert claims(gone.pid) == []  # which DVC sees by itself
        (said,) = claims(other.pid, other.pid)
        assert said.startswith(".dvc/tmp/rwlock was cut off")
        assert not path.exists()
    finally:
        other.kill()
        other.wait()


def test_a_file_that_is_being_written_is_left_alone(made, monkeypatch):
    path = made.path / "dvc.lock"
    path.write_text("sch")
    monkeypatch.setattr(dvc_files.time, "sleep", lambda _: path.write_text("schema: '2.0'\n"))
    assert dvc_files.set_damaged_aside(made.path) == []
    monkeypatch.setattr(dvc_files.time, "sleep", lambda _: path.write_text("schem"))
    path.write_text("sch")
    assert dvc_files.set_damaged_aside(made.path) == []
    assert path.read_text() == "schem"


def run_here(made, log=lambda _: None):
    return LocalRunner(made.path)(Stage(name="good", deps=(), outs=()), log)


def test_one_stage_twice_at_once_runs_once(made):
    stages = [Background(made.path, "good") for _ in range(2)]
    assert sorted(stage.done().result.how for stage in stages) == ["cached", "ran"]
    assert made.lines("runs") == ["once"]
    said = [line for stage in stages for line in stage.lines if "waiting" in line]
    assert said == ["another flow in this repository runs this: waiting for that"]


def test_the_stage_finds_the_python_that_runs_the_flow(made, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    lines = []
    environment = LocalRunner(made.path, {"SAID": "word"})._environment()
    command = ["sh", "-c", "python -c 'import sys; print(sys.prefix)'; echo $SAID"]
    assert run_process(command, cwd=made.path, environment=environment, log=lines.append) == 0
    assert lines == [sys.prefix, "word"]


def test_exit_status_and_signals_are_told_apart(tmp_path):
    def status(command):
        return run_process(
            ["sh", "-c", command], cwd=tmp_path, environment=os.environ, log=lambda line: None
        )

    assert status("exit 3") == 3
    assert status("kill -TERM $$") == -signal.SIGTERM


def test_a_helper_that_outlives_its_command_is_not_waited_for(tmp_path):
    lines = []
    start = time.monotonic()
    command = ["sh", "-c", "sleep 30 & echo $!"]
    run_process(command, cwd=tmp_path, environment=os.environ, log=lines.append)
    os.kill(int(lines[0]), signal.SIGKILL)
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_output_becomes_the_same_lines_however_it_is_cut(size):
    text = b"first\n\nsecond\r\n 10%\r 50%\r100%\nlast \xe2\x82\xac\nno end"
    chunks = (text[i : i + size] for i in range(0, len(text), size))
    lines = [line for line in lines_of(chunks) if line]
    assert lines == ["first", "second", "100%", "last €", "no end"]


def test_a_progress_bar_does_not_flood(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(clock) / 10)
    chunks = (f"\r{i:4d} of 1000".encode() for i in range(1, 1001))
    lines = list(lines_of(chunks))
    assert lines[-1] == "1000 of 1000"
    assert 5 < len(lines) < 20
    assert all(re.fullmatch(r" *\d+ of 1000", line) for line in lines)


def test_stage_lock_is_held_by_a_child_that_outlives_the_flow(tmp_path):
    """A flow that is killed leaves its stages running: the next one waits for them."""
    said = []
    with running.stage_lock(tmp_path, "a@b", said.append) as lock:
        child = psutil.Popen(["sleep", "60"], pass_fds=[lock])
    waiting = threading.Thread(target=_take, args=(tmp_path, said), daemon=True)
    waiting.start()
    wait_until(lambda: said)
    assert said == ["another flow in this repository runs this: waiting for that"]
    child.kill()
    child.wait()
    waiting.join(10)
    assert said[1:] == ["taken"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_flock_is_named(tmp_path, monkeypatch, number):
    def refuse(file, kind):
        raise OSError(number, "refused")

    monkeypatch.setattr(fcntl, "flock", refuse)
    said = f"^{tmp_path}/.dvc/tmp/{{}}: its file system has no flock, which flows need; "
    with (
        pytest.raises(StageFailedError, match=said.format("stages")),
        running.stage_lock(tmp_path, "a@b", print),
    ):
        pass
    with (
        pytest.raises(ParametersError, match=said.format("parameters")),
        parameters_in_use(tmp_path),
    ):
        pass


def _take(root, said):
    with running.stage_lock(root, "a@b", said.append):
        said.append("taken")
