"""Flows, DVC and what they start reach for no other machine, and nothing of them stays."""

import json
import os
import site
import subprocess
import venv
from pathlib import Path

import psutil
import pytest

from tests.pipelines.tiny import FLOW, ROOT, Project, project, stage, wait_until

RECORD = "CONNECTIONS"

# Every process of the environment below imports it at its start, whatever has become of its
# PYTHONPATH, which DVC takes from those that send; what is no Python here (git, sh) sends nothing.
WATCH = f"""
import ipaddress, json, os, socket, sys

ASKED = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
REACHED = ("socket.connect", "socket.sendto", "socket.sendmsg")

def is_here(host):
    if host in (None, "", b"", "localhost", b"localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified

def note(what, host):
    # No socket is needed for that, and a line this short is written whole.
    name = host.decode() if isinstance(host, bytes) else host
    line = json.dumps([what, name, sys.orig_argv]) + "\\n"
    descriptor = os.open(os.environ[{RECORD!r}], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)

def watch(event, arguments):
    if event in ASKED:
        host = arguments[0]
    elif event in REACHED:
        here, address = arguments[0], arguments[1]
        if here.family not in (socket.AF_INET, socket.AF_INET6) or address is None:
            return
        host = address[0]
    else:
        return
    if is_here(host):
        return
    note(event, host)
    raise OSError(101, "Network is unreachable")

if os.environ.get({RECORD!r}):
    note("begins", "")
    sys.addaudithook(watch)
"""

TRACKED = """
import os, sys
from pathlib import Path
from implicit_models.tracking.opening import open_tracker
with open_tracker(
    entry="x", stage="train_baseline", parameters={}, dataset="d", root=Path(os.environ["DVC_ROOT"])
) as tracker:
    for step in range(3):
        tracker.log_metrics({"loss": 1.0}, step=step)
Path("out").write_text(Path("in").read_text())
"""

VIOLATION = """
import socket
def connect(host):
    with socket.socket() as here:
        here.connect((host, 443))
def send(host):
    with socket.socket(type=socket.SOCK_DGRAM) as here:
        here.sendto(b"x", (host, 53))
for ask, host in ((connect, "192.0.2.1"), (send, "192.0.2.2"), (socket.gethostbyname, "a.invalid")):
    try:
        ask(host)
    except OSError as error:
        print(error)
try:
    socket.create_connection(("b.invalid", 443))
except OSError as error:
    print(error)
open("out", "w").close()
"""


class Watched:
    """A project whose processes are watched, with nothing of the user's in their environment."""

    def __init__(self, made: Project, folder: Path) -> None:
        self.root = made.path
        self.record = folder / "connections"
        home, binaries = folder / "home", folder / "venv" / "bin"
        home.mkdir()
        venv.create(binaries.parent, symlinks=True)
        (packages,) = binaries.parent.glob("lib/python*/site-packages")
        (packages / "watching.py").write_text(WATCH)
        # This environment's packages, and what their own .pth files say.
        lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
        (packages / "watching.pth").write_text("\n".join(["import watching", *lines]))
        self.python = binaries / "python"
        # Not the machine's own: DO_NOT_TRACK, CI and their like would hide what is sent.
        kept = {"LANG", "TMPDIR", "LD_LIBRARY_PATH"}
        self.environment = {name: v for name, v in os.environ.items() if name in kept}
        self.environment |= {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            RECORD: str(self.record),
        }

    def run(self, *arguments: str) -> str:
        """Run Python with these arguments."""
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def lines(self) -> list[tuple[str, str, str]]:
        """Read what was noted: what happened, the other machine, and whose process it was."""
        lines = map(json.loads, self.record.read_text().splitlines())
        return [(what, host, " ".join(command)) for what, host, command in lines]

    def reached(self) -> list[tuple[str, str, str]]:
        """List what went, or asked the way, to another machine."""
        return [line for line in self.lines() if line[0] != "begins"]

    def processes(self) -> list[str]:
        """List those that live, of all that were ever started here."""
        return [
            " ".join(process.info["cmdline"])
            for process in psutil.process_iter(["cmdline", "environ"])
            if (process.info["environ"] or {}).get(RECORD) == str(self.record)
        ]


def make(folder: Path, script: str) -> Watched:
    """Make a project of one stage, with this repository's own settings of DVC."""
    made = project(
        folder / "project", {"x": stage("python stage.py", ("stage.py", "in"), ("out",))}
    )
    settings = (ROOT / ".dvc" / "config").read_text().replace("enabled = True", "enabled = False")
    without_git = settings.replace("[core]\n", "[core]\n    no_scm = true\n")
    (made.path / ".dvc" / "config").write_text(without_git)
    (made.path / "stage.py").write_text(script)
    (made.path / "in").write_text("1")
    return Watched(made, folder)


@pytest.mark.slow
def test_flow_dvc_and_tracking_stay_on_this_machine(tmp_path):
    watched = make(tmp_path, TRACKED)
    watched.run(*FLOW)
    (watched.root / "in").write_text("2")
    watched.run("-m", "dvc", "repro")
    assert (watched.root / "out").read_text() == "2"
    tracking = watched.root / ".tracking"
    wait_until(lambda: not [*tracking.glob("*.jsonl")], 600)  # its priority is the lowest
    assert (watched.root / "mlflow.db").exists()
    (tracking / "courier.lock").unlink()  # the courier would wait a while for more; now it leaves
    wait_until(lambda: not watched.processes())
    commands = " ".join(command for _, _, command in watched.lines())
    for each in (*FLOW, "api_server.py", "dvc repro", "stage.py", "implicit_models.tracking.sync"):
        assert each in commands  # it was watched
    assert watched.reached() == []


def test_what_reaches_for_another_machine_is_seen(tmp_path):
    watched = make(tmp_path, VIOLATION)
    watched.run("-m", "dvc", "repro")
    found = {(what, host) for what, host, command in watched.reached() if "stage.py" in command}
    assert found == {
        ("socket.connect", "192.0.2.1"),
        ("socket.sendto", "192.0.2.2"),
        ("socket.gethostbyname", "a.invalid"),
        ("socket.getaddrinfo", "b.invalid"),
    }
