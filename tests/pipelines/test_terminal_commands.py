"""A command that shares the terminal ends with what it runs, whoever is told to end."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from implicit_models.parameters.composition import compose
from pipelines.presets import ParametersError
from tests import warm_python
from tests.pipelines.tiny import Project, project, stage, wait_until
from tests.pipelines.writing import write_parameters
from tests.repositories import ROOT

TRAINING = (
    "trap 'echo kept > checkpoint; exit 143' TERM; echo $$ > training; "
    "while true; do sleep 0.05; done"
)
STUBBORN = "trap '' TERM; echo $$ > training; while true; do sleep 0.05; done"
SERVER = (
    "import pathlib, signal, sys, time; "
    "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('checkpoint').touch(), sys.exit())); "
    "pathlib.Path('training').write_text(str(__import__('os').getpid())); time.sleep(60)"
)
COUNTING = (
    "import pathlib, signal, sys, time; found = []; "
    "signal.signal(signal.SIGTERM, lambda *_: found.append(1)); "
    "pathlib.Path('training').write_text(str(__import__('os').getpid())); "
    "[time.sleep(0.1) for _ in iter(lambda: bool(found), True)]; time.sleep(1); "
    "pathlib.Path('checkpoint').write_text(str(len(found)))"
)
HAND_OVER = (
    "import os, sys, pathlib; from pipelines.terminal_process import run_in_terminal; "
    "run_in_terminal([sys.executable, '-c', sys.argv[1]], cwd=pathlib.Path(), "
    "environment=os.environ); print('went on')"
)
REPRODUCE = (
    "import pathlib; from pipelines.experiment import reproduce; "
    "reproduce(pathlib.Path()); print('went on')"
)


def begun(made: Project, *arguments: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    """Start Python, and return it with what it has started, once that has told its number."""
    process = made.start("-c", *arguments)
    file = made.path / "training"
    wait_until(lambda: file.exists() and file.read_text() or process.poll() is not None)
    return process, psutil.Process(int(file.read_text()))


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def trained(tmp_path: Path) -> Project:
    """Two stages, of which the first is still at work."""
    stages = {
        "train": stage(TRAINING, (), ("model",)),
        "evaluate": stage("touch scores", ("model",), ("scores",)),
    }
    return project(tmp_path / "project", stages, {})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_is_told_to_end_and_waited_for(tmp_path: Path, number: int) -> None:
    made = Project(tmp_path)
    process, server = begun(made, HAND_OVER, SERVER)
    process.send_signal(number)
    output = process.communicate(timeout=60)[0]
    assert (process.returncode, output) == (-number, "")
    assert is_gone(server) and (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_of_dvc_the_training_is_told_and_dvc_ends_as_it_should(
    trained: Project, number: int
) -> None:
    process, training = begun(trained, REPRODUCE)
    process.send_signal(number)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == -number, output
    assert "went on" not in output and "failed to reproduce 'train'" in output
    assert is_gone(training) and trained.lines("checkpoint") == ["kept"]
    assert not (trained.path / "scores").exists()
    claims = json.loads((trained.path / ".dvc" / "tmp" / "rwlock").read_text())
    assert not any(claims.values())


def test_an_interrupt_of_the_command_alone_reaches_the_training(trained: Project) -> None:
    """What `kill -INT` and supervisors do; Ctrl-C would have reached the training at once."""
    process, training = begun(trained, REPRODUCE)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == -signal.SIGINT, output  # of an uncaught KeyboardInterrupt
    assert "went on" not in output and trained.lines("checkpoint") == ["kept"]
    assert is_gone(training) and not (trained.path / "scores").exists()


def test_an_interrupt_of_the_whole_group_is_an_interrupt_and_no_failure(trained: Project) -> None:
    process, training = begun(trained, REPRODUCE)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    training.terminate()  # as Ctrl-C ends it
    output = process.communicate(timeout=60)[0]
    assert process.returncode == -signal.SIGINT and "went on" not in output


def test_a_command_that_ends_well_after_an_interrupt_has_ended_well(tmp_path: Path) -> None:
    ending = SERVER.replace("signal.SIGTERM", "signal.SIGINT")
    process, server = begun(Project(tmp_path), HAND_OVER, ending)
    server.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert (process.returncode, output) == (0, "went on\n")


IN_A_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("is_dvc", [True, False])
def test_a_whole_group_is_told_to_end(
    trained: Project, tmp_path: Path, number: int, is_dvc: bool
) -> None:
    """What `timeout`, a scheduler and a terminal that closes do: all processes get the signal."""
    made = trained if is_dvc else Project(tmp_path)
    code, *arguments = [REPRODUCE] if is_dvc else [HAND_OVER, COUNTING]
    process, training = begun(made, f"import os; os.setpgrp(); {code}", *arguments)
    time.sleep(5)  # it looks at what there is every other second
    os.killpg(os.getpgid(training.pid), number)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == -number and "went on" not in output
    assert is_gone(training) and (made.path / "checkpoint").exists()
    if not is_dvc:  # of the end of the terminal it hears through the command alone
        assert int((tmp_path / "checkpoint").read_text()) in ((1, 2), (1,))[number == signal.SIGHUP]


def test_a_terminal_that_closes_lets_the_training_keep_a_checkpoint(trained: Project) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", IN_A_TERMINAL, "-c", REPRODUCE]
    process = subprocess.Popen(
        command,
        cwd=trained.path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    file = trained.path / "training"
    wait_until(lambda: file.exists() and file.read_text() or process.poll() is not None)
    training = psutil.Process(int(file.read_text()))
    os.close(ours)  # the kernel sends SIGHUP to the group in the foreground
    assert process.wait(60) == -signal.SIGHUP
    assert is_gone(training) and trained.lines("checkpoint") == ["kept"]
    claims = json.loads((trained.path / ".dvc" / "tmp" / "rwlock").read_text())
    assert not any(claims.values())


def test_what_does_not_end_is_killed_at_the_second_signal(tmp_path: Path) -> None:
    made = project(tmp_path / "project", {"train": stage(STUBBORN, (), ("model",))}, {})
    process, training = begun(made, REPRODUCE)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGHUP):
        process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=4)
    assert not is_gone(training)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGTERM, -signal.SIGHUP)  # whichever came first
    wait_until(lambda: is_gone(training))


def test_the_end_of_the_terminal_is_nothing_under_nohup(trained: Project) -> None:
    ignoring = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {REPRODUCE}"
    process, training = begun(trained, ignoring)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=2)
    assert not is_gone(training)
    process.terminate()
    process.communicate(timeout=60)
    assert trained.lines("checkpoint") == ["kept"]


def test_parameters_stay_while_dvc_goes_on_without_the_command(trained: Project) -> None:
    (trained.path / "conf").symlink_to(ROOT / "conf")
    (trained.path / "params.yaml").write_text(compose(ROOT, ["preset=laptop"]))
    process, training = begun(trained, REPRODUCE)
    (dvc,) = (each for each in warm_python.family(process.pid) if "repro" in each.cmdline())
    with process:
        process.kill()
        with pytest.raises(ParametersError, match="at work"):
            write_parameters(trained.path, "quick")
        os.kill(training.pid, signal.SIGTERM)
        wait_until(lambda: is_gone(dvc))
    write_parameters(trained.path, "quick")
