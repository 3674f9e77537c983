"""Clones of this repository, as a user has them, for tests that run DVC."""

import configparser
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests import warm_python

ROOT = Path(__file__).parents[1]
NO_RESULTS = (".", ":!dvc.lock", ":!results", ":!text", ":!tasks", ":!placement.yaml")
CODE = (
    ":(glob)conf/shared/**",
    *(
        f":(glob){folder}/**/*.{ending}"
        for folder in ("implicit_models", "stages", "pipelines", "scripts", "tests", "benchmarks")
        for ending in ("py", "c")
    ),
)
LEFT_OUT = ("DVC_", "GIT_", "MLFLOW_", "PYTHONDONTWRITEBYTECODE")


@dataclass
class Repository:
    """A clone, and what the commands run in it have printed.

    Attributes
    ----------
    is_warm
        Whether its `python` and `dvc` are those that start fast. A kill of theirs reaches the
        process that does the work a moment later.
    """

    path: Path
    outputs: list[str] = field(default_factory=list)
    is_warm: bool = True

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command in a process group of its own, both its outputs in one pipe."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)
        }
        environment.setdefault("OMP_NUM_THREADS", "1")  # such small models gain nothing from more
        environment["DVC_GLOBAL_CONFIG_DIR"] = str(self.path / ".dvc" / "tmp" / "no_global")
        own = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        environment["PATH"] = warm_python.before(environment["PATH"]) if self.is_warm else own
        return subprocess.Popen(
            command,
            cwd=self.path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str) -> str:
        """Run a command that must succeed; returns what it prints."""
        process = self.start(*command)
        output = process.communicate()[0]
        assert process.returncode == 0, output
        return output

    def copy(self, path: Path) -> "Repository":
        """Copy everything, DVC's cache included, when the last of its runs is sent to MLflow."""
        self.run(sys.executable, "-m", "implicit_models.tracking.sync")
        shutil.copytree(self.path, path, symlinks=True, ignore=_files_of_the_courier)
        return Repository(path)


def _files_of_the_courier(folder: str, names: list[str]) -> list[str]:
    # It lingers for some seconds after it has sent everything, and still writes these.
    is_spools = Path(folder).name == ".tracking"
    return [name for name in names if is_spools and name.startswith("courier.")]


def sources(root: Path = ROOT) -> list[str]:
    """List the files that are the project: what git has got, as it is now, and new code.

    What a user's runs leave is not among them, be it committed or not: results, dvc.lock, text,
    presets and settings of one's own.
    """
    listing = ["git", "ls-files", "-z", "--cached"]
    known = subprocess.check_output([*listing, "--", *NO_RESULTS], cwd=root, text=True)
    listing = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    new = subprocess.check_output([*listing, "--", *CODE], cwd=root, text=True)
    return [name for name in (known + new).split("\0") if name and (root / name).is_file()]


def presets() -> list[str]:
    """List the presets that git has got."""
    names = (Path(name) for name in sources())
    return sorted(each.stem for each in names if each.parent == Path("conf", "preset"))


def clone(path: Path, preset: str, *settings: str) -> Repository:
    """Copy the project and commit it with a changed preset; a user's settings of DVC stay out."""
    for name in sources():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, path / name)
    _keep_own_settings(path / ".dvc" / "config")
    repository = Repository(path)
    repository.run(sys.executable, "scripts/compose.py", preset, *settings)
    repository.run("git", "init", "--quiet")
    for setting in ("user.name=Test", "user.email=test@example.org", "gc.auto=0"):
        repository.run("git", "config", *setting.split("="))
    commit(repository, "Clone")
    return repository


def _keep_own_settings(path: Path) -> None:
    """Remove the user's remotes and caches from the configuration."""
    settings = configparser.ConfigParser()
    settings.read(path)
    settings.remove_option("core", "remote")
    for section in set(settings.sections()) - {"core", "hydra"}:
        settings.remove_section(section)
    with path.open("w") as file:
        settings.write(file)


def commit(repository: Repository, message: str) -> None:
    """Commit everything that git does not ignore."""
    repository.run("git", "add", "--all")
    repository.run("git", "commit", "--quiet", "--message", message)
