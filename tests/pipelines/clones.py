"""A small project in git, its clones on several machines, and the DVC remote between them."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests import warm_python

LEFT_OUT = ("DVC_", "GIT_")

MAKE = """
import pathlib, yaml
amount = yaml.safe_load(open("params.yaml"))["amount"]
folder = pathlib.Path("data/x/part")
folder.mkdir(parents=True)
(folder / "a").write_text("x" * amount)
(folder.parent / "b").write_text("b")
"""
TRAIN = """
import hashlib, json, os, pathlib, sys, time
if os.environ.get("FAIL"):
    sys.exit("it cannot be done")
folder = pathlib.Path("checkpoints/x/train/identity")
begun = sorted(int(step.name[5:]) for step in folder.glob("step_*"))
print("continuing from", begun[-1]) if begun else print("from the start")
for step in range(begun[-1] + 1 if begun else 1, 6):
    partial = folder / f"step_{step}.partial"
    partial.mkdir(parents=True)
    (partial / "weights").write_text("w" * step)
    (partial / "progress.json").write_text("{}")
    partial.rename(folder / f"step_{step}")
    if os.environ.get("STOP_AT") == str(step):
        pathlib.Path(os.environ["ARRIVED"]).touch()
        for _ in range(6000):
            if os.path.exists(os.environ.get("GO_ON", "")):
                break
            time.sleep(0.1)
pathlib.Path("models").mkdir(exist_ok=True)
pathlib.Path("models/m.txt").write_text(pathlib.Path("data/x/part/a").read_text() * 2)
pathlib.Path("results/runs").mkdir(exist_ok=True, parents=True)
metrics = json.dumps({"score": 1})
pathlib.Path("results/runs/m.json").write_text(metrics)
(folder / "finished").write_text(hashlib.md5(metrics.encode()).hexdigest())
"""
REPORT = """
import pathlib
texts = {path.name: path.read_text() for path in sorted(pathlib.Path("results/runs").iterdir())}
pathlib.Path("report.txt").write_text(str(texts))
"""
STAGES = {
    "make": {
        "cmd": "python make.py",
        "deps": ["make.py"],
        "params": ["amount"],
        "outs": ["data/x"],
    },
    "train": {
        "foreach": {"x": {}},
        "do": {
            "cmd": "python train.py",
            "deps": ["train.py", "data/x/part"],
            "outs": ["models/m.txt"],
            "metrics": [{"results/runs/m.json": {"cache": False}}],
        },
    },
    "report": {
        "cmd": "python report.py",
        "deps": ["report.py", "results/runs"],
        "outs": ["report.txt"],
    },
}
NAMES = ("make", "train@x", "report")


@dataclass(frozen=True)
class Clones:
    """Clones by name, and the DVC remote that all of them know."""

    root: Path

    @property
    def caller(self) -> Path:
        """Where the stages are asked for."""
        return self.root / "caller"

    @property
    def remote(self) -> Path:
        """The folder that is the DVC remote."""
        return self.root / "remote"

    def clone(self, name: str) -> Path:
        """Make another clone of the caller's."""
        run(self.root, "git", "clone", "--quiet", "caller", name)
        self._know_remote(name)
        return self.root / name

    def copy(self, root: Path) -> "Clones":
        """Copy all of them to another folder, where they know the remote that is there."""
        shutil.copytree(self.root, root, symlinks=True)
        copied = Clones(root)
        for settings in root.glob("*/.dvc/config.local"):
            copied._know_remote(settings.parts[-3])
        return copied

    def _know_remote(self, name: str) -> None:
        (self.root / name / ".dvc" / "config.local").write_text(
            f"[core]\n    remote = storage\n['remote \"storage\"']\n    url = {self.remote}\n"
        )


def make_clones(root: Path, files: Mapping[str, str] | None = None) -> Clones:
    """Make the project of three stages, and the remote."""
    clones = Clones(root)
    (clones.caller / ".dvc").mkdir(parents=True)
    clones.remote.mkdir()
    contents = {
        "dvc.yaml": yaml.safe_dump({"stages": STAGES}, sort_keys=False),
        "params.yaml": "amount: 3\n",
        "make.py": MAKE,
        "train.py": TRAIN,
        "report.py": REPORT,
        ".gitignore": "/data/\n/models/\n/report.txt\n/checkpoints\n/.tracking\n",
        ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
        ".dvc/config": "[core]\n    analytics = false\n",
        **(files or {}),
    }
    for name, text in contents.items():
        (clones.caller / name).parent.mkdir(parents=True, exist_ok=True)
        (clones.caller / name).write_text(text)
    run(clones.caller, "git", "init", "--quiet")
    for setting in ("user.name=Test", "user.email=test@example.org", "gc.auto=0"):
        run(clones.caller, "git", "config", *setting.split("="))
    commit(clones.caller)
    clones._know_remote("caller")
    return clones


def commit(path: Path) -> None:
    """Commit everything."""
    run(path, "git", "add", "--all")
    run(path, "git", "commit", "--quiet", "--message", "Test")


def run(path: Path, *command: str) -> str:
    """Run a command that must succeed; return what it prints."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith(LEFT_OUT)}
    environment["PATH"] = warm_python.before(environment["PATH"])
    done = subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def stale(path: Path) -> dict:
    """Ask DVC what is not up to date."""
    return json.loads(run(path, "dvc", "status", "--json"))
