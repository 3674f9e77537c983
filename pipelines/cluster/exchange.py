"""How a stage and its results travel between clones that share no disk: through a DVC remote.

A *request* says everything that a result depends on: the commit, the parameters, and the hash of
every dependency. The clone that asks for a stage pushes those dependencies that git does not have;
the clone that runs it takes exactly them, and holds what it has against the hashes, so that nothing
is ever made from other code or data than was meant. What comes back is the stage's entry of
dvc.lock: it names the outputs by their hashes, and these are in the remote.

Everything is addressed by its content: two nodes that publish the same stage, because one was
believed lost, do each other no harm.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dvc.output import Output
from dvc.repo import Repo
from dvc.stage import PipelineStage
from dvc.utils.serialize import load_yaml, modify_yaml
from dvc_data.hashfile.hash_info import HashInfo

from pipelines.cluster.remote import (
    description,
    faults,
    holder,
    outputs_of,
    publish_runs,
    pull,
    push,
    take_runs,
    to_cache,
)
from pipelines.git import git, text_of
from pipelines.running import StageFailedError

LOCK = "dvc.lock"
PARAMETERS = "params.yaml"


@dataclass(frozen=True)
class Request:
    """A stage that shall run elsewhere, and everything that its result depends on.

    Attributes
    ----------
    stage
        Its name.
    commit
        Of git, which has code and dvc.yaml.
    parameters
        Files of parameters, ``params.yaml`` among them: the text of each by its path.
    dependencies
        Hash of each by its path, as dvc.lock has them.
    inputs
        What comes from the remote and not from git, in the same way: dependencies, the whole
        outputs that they are parts of, and metrics and plots of the stages before.
    remote
        Name of the DVC remote; the default where None.
    """

    stage: str
    commit: str
    parameters: Mapping[str, str]
    dependencies: Mapping[str, str]
    inputs: Mapping[str, str] = field(default_factory=dict)
    remote: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Request":
        """Return what `to_dict` has made a mapping of."""
        return cls(**content)


def make_request(root: Path, name: str, remote: str | None = None) -> Request:
    """Return the request for a stage whose inputs are all there, and push those inputs.

    Raises
    ------
    StageFailedError
        Where something cannot travel: code that is not committed, no remote.
    InfrastructureError
        Where the remote cannot be reached.
    """
    commit = _git(root, "rev-parse", "HEAD").strip()
    with faults("the inputs of", name), _open(root) as repo:
        with repo.lock:
            stage = _load(repo, name)
            stage.save_deps()
        files = {dep.def_path for dep in stage.params}
        if (root / PARAMETERS).exists():  # dvc.yaml is filled in from it
            files.add(PARAMETERS)
        dependencies = {dep.def_path: dep for dep in _dependencies(stage)}
        data = {path for path, dep in dependencies.items() if not _is_in_git(repo, dep)}
        changed = [path for path in dependencies if path not in data and _is_changed(root, path)]
        if _is_changed(root, "dvc.yaml"):
            changed.insert(0, "dvc.yaml")
        if changed:
            raise StageFailedError(
                f"stage {name}: {', '.join(changed)} differs from the commit {commit[:10]}, which "
                "is what other machines have; commit it (and push), or run the stage here"
            )
        inputs: dict[str, str] = {}
        hashes: set[HashInfo] = set()
        for path, item in _inputs(repo, [dependencies[path] for path in data]).items():
            whole, *parts = to_cache(repo, item)
            inputs[path] = str(whole.value)
            hashes |= {whole, *parts}
        push(repo, hashes, remote)
        return Request(
            stage=name,
            commit=commit,
            parameters={path: (root / path).read_text(encoding="utf-8") for path in sorted(files)},
            dependencies={path: _hash(dep) for path, dep in dependencies.items()},
            inputs=inputs,
            remote=remote,
        )


def take_inputs(root: Path, request: Request) -> None:
    """Bring the stage's dependencies into a clone, and hold all of them against the request.

    Results that another node has published are taken too, for DVC to find them.

    Raises
    ------
    StageFailedError
        Where code here differs from what the request was made with.
    InfrastructureError
        Where the remote cannot be reached, or lacks something.
    """
    with faults("the inputs of", request.stage), _open(root) as repo:
        with repo.lock:
            stage = _load(repo, request.stage)
        pull(repo, holder(stage, request.inputs, repo.root_dir), request.remote)
        with repo.lock:
            stage.save_deps()
        here = {dep.def_path: _hash(dep) for dep in _dependencies(stage)}
        paths = sorted({*here, *request.dependencies})
        differing = [path for path in paths if here.get(path) != request.dependencies.get(path)]
        if differing:
            raise StageFailedError(
                f"stage {request.stage}: {', '.join(differing)} is not here what it is where the "
                f"stage was asked for, though both are at commit {request.commit[:10]}; "
                "commit what is not committed there, or have git leave line endings as they are"
            )
        take_runs(stage, request.remote)


def publish(root: Path, request: Request) -> dict[str, Any]:
    """Push the outputs of a stage that has run, and then the record of the run.

    Returns
    -------
    dict
        Its entry of dvc.lock.

    Raises
    ------
    InfrastructureError
        Where the remote cannot be reached.
    """
    with (
        faults("the results of", request.stage),
        _open(root) as repo,
    ):
        with repo.lock:
            stage = _load(repo, request.stage)
            entry = load_yaml(root / LOCK)["stages"][request.stage]
        hashes = {each for out in stage.outs for each in to_cache(repo, out)}
        push(repo, hashes, request.remote)
        publish_runs(stage, request.remote)
        return entry


def receive(root: Path, name: str, entry: Mapping[str, Any], remote: str | None = None) -> None:
    """Bring the outputs of a stage that ran elsewhere into a repository, and record it there.

    Raises
    ------
    InfrastructureError
        Where the remote cannot be reached, or lacks something.
    """
    with faults("the results of", name), _open(root) as repo:
        with repo.lock:
            stage = _load(repo, name)
        pull(repo, holder(stage, outputs_of(entry)), remote)
        with repo.lock:
            with modify_yaml(root / LOCK) as content:
                content.setdefault("schema", "2.0")
                content.setdefault("stages", {})[name] = dict(entry)
            stage.save_deps()
        take_runs(stage, remote)


def _open(root: Path) -> Repo:
    return Repo(os.fspath(root), _wait_for_lock=True)


def _load(repo: Repo, name: str) -> PipelineStage:
    stage = repo.stage.load_one(path=description(repo), name=name)
    assert isinstance(stage, PipelineStage)
    return stage


def _dependencies(stage: PipelineStage) -> Iterable[Output]:
    """Return the dependencies that are files, less parameters."""
    parameters = set(map(id, stage.params))
    return [dep for dep in stage.deps if id(dep) not in parameters]


def _is_in_git(repo: Repo, dependency: Output) -> bool:
    """Return whether a commit contains it: it has files in git, and is no stage's output."""
    path = dependency.fs_path
    outputs = (out.fs_path for out in repo.index.outs)
    if any(repo.fs.isin_or_eq(path, out) or repo.fs.isin(out, path) for out in outputs):
        return False
    return bool(_git(Path(repo.root_dir), "ls-files", "--", path))


def _inputs(repo: Repo, data: Iterable[Output]) -> dict[str, Output]:
    """Return by their paths what a stage gets that reads these dependencies.

    A stage may read more of a data set than dvc.yaml says that it depends on: what says how it was
    made, which a part of it depends on; and what tracking tells of the stages before.
    """
    found = {item.fs_path: item for item in data}
    isin = repo.fs.isin_or_eq
    for path in list(found):
        for stage in repo.index.stages:
            if any(isin(path, out.fs_path) or isin(out.fs_path, path) for out in stage.outs):
                for out in stage.outs:
                    if (isin(path, out.fs_path) or out.metric or out.plot) and out.exists:
                        found[out.fs_path] = out
    outer = {
        path: item
        for path, item in found.items()
        if not any(repo.fs.isin(path, other) for other in found)
    }
    return {repo.fs.relpath(path, repo.root_dir): item for path, item in outer.items()}


def _hash(item: Output) -> str:
    assert item.hash_info is not None
    return str(item.hash_info.value)


def _is_changed(root: Path, path: str) -> bool:
    return bool(_git(root, "status", "--porcelain", "--", path))


def _git(root: Path, *arguments: str) -> str:
    try:
        done = git(root, *arguments)
    except FileNotFoundError:
        raise StageFailedError(
            "git is not installed, by which other machines get code; install it"
        ) from None
    if done.returncode:
        said = text_of(done.stderr).strip()
        raise StageFailedError(
            f"{root}: git {arguments[0]} failed: {said}; other machines get code by git, so stages "
            "that run there need a repository with a commit"
        )
    return text_of(done.stdout)
