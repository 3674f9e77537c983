"""Workspaces beside the repository in which experiments of DVC run at the same time.

Each is a clone of its own that shares DVC's cache: nothing touches the user's files and locks. One
that was interrupted keeps its checkpoints, so that the next attempt goes on from them.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from implicit_models.files import write_whole
from implicit_models.tracking.stores import stores_of
from pipelines.git import git, text_of
from pipelines.running import Log, StageFailedError, pause, run_process, stage_lock
from pipelines.sweeps.own_files import check_own, link_own_files
from pipelines.sweeps.points import Origin, Point

#: What an attempt leaves to the next one, and what it has tracked and not sent.
KEPT = ("checkpoints", ".tracking")
TAIL_LINES = 8
NOISE = (  # of DVC, in every stage
    "No file hash info found",
    "Generating lock file",
    "Updating lock file",
    "To track the changes with git",
    "git add dvc.lock",
    "To enable auto staging",
    "dvc config core.autostage",
    "Use `dvc push` to send",
    "Experiment results have been applied to your workspace",  # to the clone, not the user's
)


@dataclass(frozen=True)
class Workspace:
    """A clone of a repository.

    Attributes
    ----------
    root
        The repository.
    folder
        Of the clone.
    origin
        Its code.
    environment
        What commands there have on top of that of this process.
    keep_open
        File descriptors that they inherit: locks that they hold on if this process dies.
    """

    root: Path
    folder: Path
    origin: Origin
    environment: Mapping[str, str] = field(default_factory=dict)
    keep_open: tuple[int, ...] = ()

    def prepare(self, cache: Path, parameters: Mapping[str, Any]) -> None:
        """Make the clone, with the repository's uncommitted changes, on its cache.

        Parameters
        ----------
        parameters
            Of the point; what they name and git has not got, such as a text, is linked.
        """
        aside = self.folder.with_name(f"{self.folder.name}.kept")
        aside.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if (self.folder / name).exists() and not (aside / name).exists():
                (self.folder / name).rename(aside / name)
        shutil.rmtree(self.folder, ignore_errors=True)
        _git(self.root, "clone", "--quiet", "--no-checkout", ".", str(self.folder))
        _git(self.folder, "checkout", "--quiet", "--detach", self.origin.commit)
        for name in ("user.name", "user.email"):
            value = _git(self.root, "config", "--default", "", "--get", name).strip()
            if value:
                _git(self.folder, "config", name, value)
        if self.origin.changes:
            _git(self.folder, "apply", "--whitespace=nowarn", "-", given=self.origin.changes)
        self._share(cache)
        link_own_files(self.root, self.folder, parameters)
        for name in KEPT:
            if (aside / name).exists():
                (aside / name).rename(self.folder / name)
        aside.rmdir()

    def _share(self, cache: Path) -> None:
        """Write into the clone the repository's own settings of DVC, and its cache."""
        from dvc.config import Config

        own: Any = Config(os.fspath(self.root / ".dvc")).load_one("local")
        content: Any
        with Config(os.fspath(self.folder / ".dvc")).edit("local") as content:
            for section, values in own.items():
                content[section].update(values)
            content["cache"]["dir"] = os.fspath(cache)

    def run(self, command: Sequence[str], log: Log, lock: int) -> None:
        """Run DVC with some arguments in the workspace; it holds the lock on if this process dies.

        Raises
        ------
        StageFailedError
            It failed; the message has its last lines.
        StoppedError
            `stop_all` was called.
        """
        tail: list[str] = []

        def keep(line: str) -> None:
            if not any(noise in line for noise in NOISE):
                tail.append(line)
                log(line)

        code = run_process(
            [sys.executable, "-m", "dvc", *command],
            cwd=self.folder,
            environment=self._environment(),
            log=keep,
            keep_open=(lock, *self.keep_open),
        )
        if code:
            last = "\n".join(tail[-TAIL_LINES:])
            raise StageFailedError(
                f"{last}\n(exit status {code}; its files: {self.folder}; the same command goes on "
                "from there)"
            )

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self.environment}
        environment |= stores_of(self.root, environment)
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        return environment

    def everything_sent(self) -> bool:
        """Send what is tracked and has not reached MLflow; whether nothing is left."""
        if not (self.folder / ".tracking").exists():
            return True
        command = [sys.executable, "-m", "implicit_models.tracking.sync"]
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment(), capture_output=True, text=True
        )
        return done.returncode == 0

    def has(self, point: Point) -> bool:
        """Return whether the experiment is finished here, and was not handed over yet."""
        return (self.folder / ".git").exists() and is_done(self.folder, self.origin, point)

    def is_own(self, point: Point) -> bool:
        """Return whether what ran here has read the files that the point is named by."""
        return not point.own or self._mark(point).exists()

    def mark_own(self, point: Point) -> None:
        """Note that it has."""
        self._mark(point).touch()

    def _mark(self, point: Point) -> Path:
        return self.folder / ".git" / f"{point.name}.own"

    def hand_over(self, point: Point) -> None:
        """Fetch the finished experiment into the repository."""
        reference = experiment_reference(self.origin, point)
        arguments = ["-c", "gc.auto=0", "fetch", "--quiet", "--no-write-fetch-head"]
        _git(self.root, *arguments, str(self.folder), f"{reference}:{reference}")

    def remove(self) -> None:
        """Delete the workspace."""
        shutil.rmtree(self.folder, ignore_errors=True)


def run_point(workspace: Workspace, cache: Path, point: Point, log: Log) -> bool:
    """Run one point as an experiment of DVC, and hand it to the repository.

    Returns
    -------
    bool
        Whether it ran; False where somebody else has run it while this waited.

    Raises
    ------
    StageFailedError, StoppedError
        As `Workspace.run`; the workspace stays, and the next attempt uses its checkpoints.
    """
    pause(0)
    root, folder = workspace.root, workspace.folder
    with stage_lock(root, point.name, log) as lock:
        if is_done(root, workspace.origin, point):
            return False
        # DVC may have gone on to its end after the sweep that had started it was killed.
        if not workspace.has(point) or not workspace.is_own(point):
            check_own(root, point.own)
            workspace.prepare(cache, point.parameters)
            settings = [part for override in point.overrides for part in ("--set-param", override)]
            workspace.run(["exp", "run", "--name", point.name, *settings], log, lock)
            check_own(root, point.own)
            workspace.mark_own(point)
        workspace.hand_over(point)
        if workspace.everything_sent():
            workspace.remove()
        else:
            log(
                f"not all of it has reached MLflow: `cd {folder} && "
                "python -m implicit_models.tracking.sync` sends the rest"
            )
    return True


def run_shared(
    workspace: Workspace, cache: Path, point: Point, changed: set[str], log: Log
) -> None:
    """Run the stages that come out the same in all points, so that DVC's cache has them.

    Raises
    ------
    StageFailedError, StoppedError
        As `Workspace.run`.
    """
    pause(0)
    folder = workspace.folder
    with stage_lock(workspace.root, folder.name, log) as lock:
        workspace.prepare(cache, point.parameters)
        parameters = yaml.safe_dump(dict(point.parameters), sort_keys=False)
        write_whole(folder / "params.yaml", parameters)
        targets = shared_stages(folder, changed)
        if targets:
            workspace.run(["repro", *targets], log, lock)
        if workspace.everything_sent():
            workspace.remove()


def shared_stages(folder: Path, changed: set[str]) -> list[str]:
    """Return the stages that no changed parameter reaches, directly or by a parent, as targets."""
    from dvc.dependency.param import ParamsDependency
    from dvc.repo import Repo

    def is_touched(name: str) -> bool:
        return any(
            key == name or key.startswith(f"{name}.") or name.startswith(f"{key}.")
            for key in changed
        )

    with Repo(str(folder)) as repo:
        graph = repo.index.graph
        own = {
            stage
            for stage in graph
            for dep in stage.deps
            if isinstance(dep, ParamsDependency) and any(map(is_touched, dep.params))
        }
        # In DVC's graph an edge leads from a stage to what it depends on.
        waiting = list(own)
        while waiting:
            for child in graph.predecessors(waiting.pop()):
                if child not in own:
                    own.add(child)
                    waiting.append(child)
        # DVC's own addresses would be those from the working directory.
        return sorted(
            f"{os.path.relpath(stage.path, folder)}:{stage.name}"
            for stage in graph
            if stage not in own
        )


def is_done(root: Path, origin: Origin, point: Point) -> bool:
    """Return whether a repository has the experiment of a point."""
    reference = experiment_reference(origin, point)
    return git(root, "show-ref", "--quiet", "--verify", reference).returncode == 0


def experiment_reference(origin: Origin, point: Point) -> str:
    """Return where git keeps the experiment of a point."""
    return f"refs/exps/{origin.commit[:2]}/{origin.commit[2:]}/{point.name}"


def cache_folder(root: Path) -> Path:
    """Return DVC's cache of a repository."""
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        return Path(repo.cache.local_cache_dir)


def _git(folder: Path, *arguments: str, given: bytes | None = None) -> str:
    """Run git and return what it prints; its own message is the error's."""
    done = git(folder, *arguments, given=given)
    if done.returncode:
        raise StageFailedError(f"git {' '.join(arguments)}: {text_of(done.stderr).strip()}")
    return text_of(done.stdout)
