"""A flow in a copy of the project is waited for when the command that runs it is stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import state_tracking
from scripts import make_figures
from tests.pipelines.tiny import wait_until
from tests.repositories import ROOT

# As a flow does: it takes its time to end in order, at Ctrl-C and at SIGTERM.
FLOW = """
import pathlib, signal, sys, time
def end(number, frame):
    time.sleep(1.5)
    pathlib.Path("ended").touch()
    sys.exit(128 + number)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, end)
pathlib.Path("begun").touch()
time.sleep(60)
"""
COMMAND = """
import pathlib, sys
from benchmarks import state_tracking
from benchmarks.clones import python
state_tracking.reproduced = lambda *_, **__: python(
    pathlib.Path(), "-c", pathlib.Path("flow").read_text(), shown=True
)
sys.exit(state_tracking.main(["layers"]))
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_the_flow_is_waited_for(tmp_path: Path, number: int, status: int) -> None:
    (tmp_path / "flow").write_text(FLOW)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: (tmp_path / "begun").exists() or process.poll() is not None)
    (flow,) = psutil.Process(process.pid).children()
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # Ctrl-C reaches both
    else:
        process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == status, error
    assert (tmp_path / "ended").exists() and not flow.is_running()
    told = "stopped; the same command goes on from there\n"
    assert error == (told if number == signal.SIGINT else "")


@pytest.mark.parametrize(
    ("command", "name"), [(make_figures, "length"), (state_tracking, "layers")]
)
def test_ctrl_c_is_one_line(command, name, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "reproduced", stopped)
    assert command.main([name]) == 130
    assert capsys.readouterr().err == "stopped; the same command goes on from there\n"


def test_short_trainings_keep_nothing_to_go_on_from(monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(state_tracking, "reproduced", stopped)
    assert state_tracking.main(["layers", "--quick"]) == 130
    assert capsys.readouterr().err == "stopped\n"
