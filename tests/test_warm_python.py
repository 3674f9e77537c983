"""The `python` of tests/warm_python does as the real one does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import warm_python

PROBE = """
import os, random, signal, sys, atexit
from stages import beside
print(sys.argv[1:], __name__, os.getcwd(), os.environ.get("MINE"), "TMPDIR" in os.environ)
print([path for path in sys.path if "warm_python" in path or path.endswith("first")])
print(oct(os.umask(0)), sys.dont_write_bytecode, sys.stdin.read())
print(sorted(name for name in sys.modules if name.split(".")[0] in ("client", "tests")))
print(signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT))
atexit.register(lambda: print("at the end", flush=True))
print("said", file=sys.stderr)
exec(sys.argv[1])
"""
COLD = "import sys; print('torch' in sys.modules)"
SLEEP = "open('there', 'w').close(); import time; time.sleep(60)"
THREADS = "import torch; print(torch.get_num_threads())"  # seconds, for the real one: once
LATER = "import threading; threading.Timer(0.1, print, ['in a thread']).start()"
ENDS = {
    THREADS: 0,
    LATER: 0,
    "sys.exit(261)": 5,
    "sys.exit(3)": 3,
    "sys.exit(True)": 1,
    "sys.stdout.flush(); atexit._clear(); sys.stdout.close()": 0,
    "sys.exit('no')": 1,
    "raise KeyError('x')": 1,
    "os._exit(7)": 7,
    "os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
    "os.kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM,
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not warm_python.IS_THERE, reason="the server watches by Linux's means"),
]


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    """Make a folder with a module to run."""
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "__init__.py").touch()
    (tmp_path / "stages" / "probe.py").write_text(PROBE)
    (tmp_path / "stages" / "beside.py").touch()
    return tmp_path


def start(python: Path | str, folder: Path, code: str, **options) -> subprocess.Popen[str]:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [python, "-m", "stages.probe", code]
    environment = os.environ | {"MINE": "ä 'x'", "OMP_NUM_THREADS": "1", "PYTHONPATH": "/first"}
    environment["PYTHONUNBUFFERED"] = "1"  # what is killed loses nothing that it has said
    return subprocess.Popen(
        command, cwd=folder, env=environment | options.pop("env", {}), text=True, **pipes, **options
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.close()
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.stdin = None


@pytest.mark.parametrize("code", ENDS)
def test_it_says_and_ends_as_the_real_one(probe: Path, code: str):
    answers = []
    for python in (sys.executable, warm_python.folder() / "python"):
        process = start(python, probe, code, umask=0o27)
        output, errors = process.communicate("asked", timeout=60)
        answers.append((process.returncode, output, [errors.splitlines()[i] for i in (0, -1)]))
    assert answers[0][0] == ENDS[code]
    assert "asked" in answers[0][1]
    assert answers[1] == answers[0]


@pytest.mark.parametrize(
    ("number", "status"),
    [
        *((number, -number) for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)),
        (signal.SIGINT, 1),  # of a KeyboardInterrupt where transformers is imported
    ],
)
def test_a_signal_ends_both(probe: Path, number: int, status: int):
    process = start(warm_python.folder() / "python", probe, SLEEP, start_new_session=True)
    wait_for(probe / "there", process)
    (fork,) = (
        each
        for each in psutil.process_iter()
        if _folder_of(each) == probe and each.pid != process.pid
    )
    os.killpg(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode == status
    fork.wait(10)


def test_a_handled_signal_is_the_modules_affair(probe: Path):
    handled = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5));" + SLEEP
    process = start(warm_python.folder() / "python", probe, handled)
    wait_for(probe / "there", process)
    process.terminate()
    assert "at the end" in process.communicate(timeout=60)[0]
    assert process.returncode == 5


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["-c", COLD], {}),
        (["-m", "stages.cold"], {"HF_HUB_OFFLINE": "maybe"}),
    ],
)
def test_otherwise_it_becomes_the_real_one(probe: Path, arguments, environment):
    (probe / "stages" / "cold.py").write_text(COLD)
    output = subprocess.check_output(
        [warm_python.folder() / "python", *arguments], cwd=probe, env=os.environ | environment
    )
    assert output == b"False\n"


def test_dvc_is_a_command(tmp_path: Path):
    command = [warm_python.folder() / "dvc", "version"]
    assert b"DVC version" in subprocess.check_output(command, cwd=tmp_path)


def test_what_torchs_compiler_sets_makes_no_process_cold(probe: Path):
    (probe / "stages" / "cold.py").write_text(COLD)
    output = subprocess.check_output(
        [warm_python.folder() / "python", "-m", "stages.cold"],
        cwd=probe,
        env=os.environ | {"KMP_DUPLICATE_LIB_OK": "True"},
    )
    assert output == b"True\n"


def test_open_files_are_handed_on(probe: Path):
    reading, writing = os.pipe()
    os.write(writing, b"handed on")
    os.close(writing)
    code = f"print(os.read({reading}, 99))"
    process = start(warm_python.folder() / "python", probe, code, pass_fds=[reading])
    os.close(reading)
    assert str(b"handed on") in process.communicate(timeout=60)[0]


def test_a_fork_belongs_to_the_family(probe: Path):
    process = start(warm_python.folder() / "python", probe, SLEEP)
    wait_for(probe / "there", process)
    client, fork = warm_python.family(process.pid)
    assert client.pid == process.pid
    assert _folder_of(fork) == probe
    fork.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def test_prefect_has_the_settings_of_the_environment(tmp_path: Path):
    (tmp_path / "prefect.toml").write_text("[client]\nmax_retries = 7\n")
    own = {"PREFECT_API_URL": "http://here/api", "PREFECT_HOME": str(tmp_path)}
    views = [
        subprocess.check_output(
            [python, "-m", "prefect", "config", "view"], cwd=tmp_path, env=os.environ | own
        )
        for python in (sys.executable, warm_python.python())
    ]
    assert b"http://here/api" in views[0]
    assert b"PREFECT_CLIENT_MAX_RETRIES='7'" in views[0]
    assert views[1] == views[0]


def test_wrong_settings_of_prefect_are_told_as_the_real_one_does(tmp_path: Path):
    (tmp_path / "prefect.toml").write_text("[client\n")
    said = [
        subprocess.run([python, "-m", "prefect", "version"], cwd=tmp_path, capture_output=True)
        for python in (sys.executable, warm_python.python())
    ]
    assert [each.returncode for each in said] == [1, 1]
    assert said[1].stderr == said[0].stderr


def _folder_of(process: psutil.Process) -> Path | None:
    try:
        return Path(process.cwd())
    except psutil.Error:
        return None
