"""The DAG of stages, read from DVC itself: there is no second description of it."""

import logging
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from implicit_models.parameters import read_content
from implicit_models.parameters.errors import closest_name
from pipelines.dvc_files import set_damaged_aside

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """One of DVC's stages.

    Attributes
    ----------
    name
        As DVC addresses it: ``train_free@x``.
    parents
        Names of the stages whose outputs it reads.
    deps, outs, metrics
        Paths as dvc.yaml has them; the metrics are among the outputs.
    """

    name: str
    parents: tuple[str, ...] = ()
    deps: tuple[str, ...] = ()
    outs: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What it does, whatever the entry: ``train_free``."""
        return self.name.partition("@")[0]

    @property
    def entry(self) -> str:
        """The entry of params.yaml that it does it for: ``x``; empty for a stage of the project."""
        return self.name.partition("@")[2]


@dataclass(frozen=True)
class DagStatus:
    """What DVC says of the stages at one moment.

    Attributes
    ----------
    stages
        Those asked for and all they depend on, parents first.
    unchanged
        Names of those that DVC would not run, and restore nothing of.
    in_use
        Names of those whose files somebody is working on, and of those that depend on such.
    stale
        Names of those whose outputs, where they are there, are of other parameters, code or data
        than there are now. Where files are gone that DVC may restore, they are not.
    """

    stages: dict[str, Stage]
    unchanged: frozenset[str]
    in_use: frozenset[str] = frozenset()
    stale: frozenset[str] = frozenset()


_State = Literal["unchanged", "in use", "stale", "lacks files"]


class UnknownTargetError(ValueError):
    """A target that DVC does not know."""


def read_dag(root: Path, targets: Sequence[str] = ()) -> dict[str, Stage]:
    """Read the stages that targets need, parents first; of no target, all that dvc.yaml has.

    Parameters
    ----------
    root
        The repository.
    targets
        As `dvc repro` takes them: stages, groups of stages (``train_free``), dvc.yaml files.

    Raises
    ------
    UnknownTargetError
        With the closest name there is.
    ParameterError
        Where a name in params.yaml is not allowed.
    dvc.exceptions.DvcException
        Where dvc.yaml or params.yaml is wrong.
    """
    return _look(root, targets, with_status=False).stages


def dag_status(root: Path, targets: Sequence[str] = ()) -> DagStatus:
    """Read the stages that targets need, and which of them are up to date, under DVC's lock."""
    return _look(root, targets, with_status=True)


def _look(root: Path, targets: Sequence[str], with_status: bool) -> DagStatus:
    # DVC takes half a second to import: whoever only needs a Stage does not wait for that.
    from dvc.repo import Repo, lock_repo
    from dvc.repo.reproduce import get_active_graph, plan_repro

    root = root.absolute()
    if (root / "params.yaml").exists():
        read_content(root / "params.yaml")  # DVC takes any name for a path
    for line in set_damaged_aside(root):
        log.warning(line)
    with Repo(str(root), _wait_for_lock=True) as repo, lock_repo(repo):
        graph = get_active_graph(repo.index.graph)
        wanted = [s for target in targets or ["dvc.yaml"] for s in _collect(repo, root, target)]
        found = list(dict.fromkeys(plan_repro(graph, wanted)))
        stages = {}
        states: dict[str, _State] = {}
        for stage in found:
            parents = [_name(parent, root) for parent in graph.successors(stage)]
            name = _name(stage, root)
            stages[name] = Stage(
                name,
                tuple(sorted(parents)),
                tuple(dep.def_path for dep in stage.deps),
                tuple(out.def_path for out in stage.outs),
                tuple(out.def_path for out in stage.outs if out.metric),
            )
            if with_status:
                made_from = [out for parent in graph.successors(stage) for out in parent.outs]
                states[name] = _state(stage, {states[parent] for parent in parents}, made_from)
    named = {
        state: frozenset(name for name, its in states.items() if its == state)
        for state in get_args(_State)
    }
    return DagStatus(stages, named["unchanged"], named["in use"], named["stale"])


def _state(stage: Any, of_parents: Set[str], outs_of_parents: Sequence[Any]) -> _State:
    """Return what DVC says of a stage."""
    from dvc.lock import LockError

    for inherited in ("in use", "stale"):
        if inherited in of_parents:
            return inherited
    try:
        changes = stage.status()
    except LockError:  # whoever runs it waits for that
        return "in use"
    if _is_stale(changes) or (changes and _is_of_other_files(stage, outs_of_parents)):
        return "stale"
    return "lacks files" if changes or "lacks files" in of_parents else "unchanged"


def _is_stale(changes: Mapping[str, list[Any]]) -> bool:
    """Return whether anything but a lack of files is among the changes that DVC tells."""
    for change in (each for of_stage in changes.values() for each in of_stage):
        if isinstance(change, str):  # of the command, or it has no record
            return True
        states = [state for of_kind in change.values() for state in of_kind.values()]
        if any(state not in ("deleted", "not in cache") for state in states):
            return True
    return False


def _is_of_other_files(stage: Any, outs_of_parents: Sequence[Any]) -> bool:
    """Return whether a stage's record and its files differ where DVC tells of a lack alone.

    Of a dependency that is gone DVC does not say that it was made anew since, and of an output
    that its cache lacks not that another one lies there.
    """
    return any(_was_made_anew(dep, outs_of_parents) for dep in stage.deps) or any(
        out.exists and out.changed_checksum() for out in stage.outs
    )


def _was_made_anew(dep: Any, outs_of_parents: Sequence[Any]) -> bool:
    for out in outs_of_parents:
        if dep.fs_path == out.fs_path:
            return dep.hash_info != out.hash_info
        if dep.fs_path.startswith(f"{out.fs_path}{os.sep}"):
            if out.get_obj() is None:  # DVC's cache lacks the list of its files
                return False
            made = out.get_obj(filter_info=dep.fs_path)
            return made is None or dep.hash_info != made.hash_info
    return False


def _collect(repo: Any, root: Path, target: str) -> list[Any]:
    """Return a target's stages; paths are those from root, and not from the working directory."""
    from dvc.exceptions import DvcException
    from dvc.stage.exceptions import (
        StageFileDoesNotExistError,
        StageFileIsNotDvcFileError,
        StageNotFound,
    )

    file, colon, name = target.rpartition(":")
    if not colon:
        is_file = target.endswith((".dvc", ".yaml", ".yml"))
        file, name = (target, "") if is_file else ("dvc.yaml", target)
    try:
        return list(repo.stage.collect(f"{root / file}:{name}" if name else str(root / file)))
    except (StageFileDoesNotExistError, StageFileIsNotDvcFileError, StageNotFound) as error:
        if file != "dvc.yaml" or not name:
            raise UnknownTargetError(f"target {target}: {error}") from None
        raise UnknownTargetError(_unknown(repo, root, target)) from None
    except DvcException as error:
        raise UnknownTargetError(f"target {target}: {error}") from error


def _unknown(repo: Any, root: Path, target: str) -> str:
    stages = [_name(stage, root) for stage in repo.index.stages]
    kinds = {name.partition("@")[0] for name in stages}
    closest = closest_name(target, [*kinds, *stages]) if stages else "none"
    return f"there is no stage {target}; the closest is {closest}"


def _name(stage: Any, root: Path) -> str:
    """Return a stage's address as DVC has it in the repository's root, wherever this process is."""
    file = Path(stage.path)
    if not hasattr(stage, "name") or not stage.name:
        return str(file.relative_to(root))
    return stage.name if file == root / "dvc.yaml" else f"{file.relative_to(root)}:{stage.name}"
