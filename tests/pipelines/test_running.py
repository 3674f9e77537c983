import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import zc.lockfile

from pipelines import processes, running
from pipelines.dag import Stage
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


def test_a_killed_stage_is_a_fault_of_the_infrastructure(made):
    with pytest.raises(InfrastructureError, match="stage killed was ended by SIGKILL from outside"):
        run(made, "killed")


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


def _take(root, said):
    with running.stage_lock(root, "a@b", said.append):
        said.append("taken")
