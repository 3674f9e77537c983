"""The opening of a stage's tracker: which run of which entry it records, and for which store."""

import contextlib
import functools
import json
import os
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from implicit_models import parameters as parameters_module
from implicit_models.parameters.dotted import dotted
from implicit_models.tracking.courier import ensure_courier
from implicit_models.tracking.recording import SpoolTracker
from implicit_models.tracking.spool import Spool, newest_first
from implicit_models.tracking.stores import destination_now
from implicit_models.tracking.system import SystemMonitor
from implicit_models.tracking.tracker import NullTracker, Tracker

DEFAULT_EXPERIMENT = "implicit-models"
STARTING_STAGES = frozenset({"train_bounded", "train_baseline"})

_GIT_SECONDS = 10.0


def open_tracker(
    *,
    entry: str,
    stage: str,
    parameters: Mapping[str, Any],
    stage_parameters: Mapping[str, Any] | None = None,
    dataset: str,
    digest: str | None = None,
    seed: int | None = None,
    labels: Mapping[str, str] | None = None,
    resume_key: str | None = None,
    finished_counts: bool = False,
    experiment: str = DEFAULT_EXPERIMENT,
    root: Path = Path("."),
    send: bool = True,
) -> Tracker:
    """Open the tracker of one stage of one entry.

    The stages `STARTING_STAGES` begin a new run of the entry; every other stage joins the newest
    one of the same entry and digest. The tracking store is ``MLFLOW_TRACKING_URI``, or an SQLite
    file in `root`; ``MLFLOW_EXPERIMENT_NAME`` overrides the experiment. The store is not touched
    here: whether it can be reached or not, opening takes a fraction of a second.

    Parameters
    ----------
    entry, stage
        Names, ``"a5_implicit_mamba2"`` and ``"train_free"``.
    parameters
        Of the entry, logged to its run and to the stage's: nested mappings, which get
        dotted names.
    stage_parameters
        Of the stage alone, logged to its run. The entry's would show the first ones ever used,
        beside the newest metrics.
    dataset, seed
        Labels of the run.
    labels
        More of them: what entries are grouped by.
    digest
        What tells attempts with different parameters apart, and is the same in all stages of
        one; the digest of `parameters` where not given.
    resume_key
        Identity of the checkpoint that the stage continues. Where an unfinished run of the same
        entry, stage and key exists, it is continued, and steps it has are not logged again.
    finished_counts
        Whether a finished run of the same entry, stage and key has told all that this one would,
        since its process was killed only after it had ended. Nothing is recorded then.
    experiment
        Name of the experiment in MLflow.
    root
        The repository.
    send
        Whether to send in the background while the stage runs; otherwise events wait for the
        next stage or for ``python -m implicit_models.tracking.sync``.
    """
    digest = digest or parameters_module.digest(parameters)
    courier = functools.partial(ensure_courier, root) if send else None
    monitor = SystemMonitor.from_environment(root)
    identity = {"entry": entry, "stage": stage, "digest": digest, "resume_key": resume_key}
    before = _ended(root, identity) if resume_key is not None else None
    if before is not None and not before.is_finished:
        with contextlib.suppress(BlockingIOError):
            return SpoolTracker(before.spool, {}, courier, monitor)
    elif before is not None and finished_counts:
        return NullTracker()
    known = {
        "entry": entry,
        "dataset": dataset,
        "seed": None if seed is None else str(seed),
        "parameters.digest": digest,
        "dvc.experiment": os.environ.get("DVC_EXP_NAME"),
    }
    tags = {name: value for name, value in known.items() if value is not None}
    if stage in STARTING_STAGES:
        parent, newest = uuid.uuid4().hex, None
    else:  # MLflow may know one where nothing here does
        newest = next(newest_first(root, entry=entry, digest=digest), None)
        parent = newest[1]["parent"] if newest else None
    start = identity | {
        "dvc_stage": os.environ.get("DVC_STAGE", f"{stage}@{entry}"),
        "parent": parent,
        # Where an earlier version began the entry's run, it goes on there.
        "experiment": os.environ.get("MLFLOW_EXPERIMENT_NAME")
        or (newest[1]["experiment"] if newest else experiment),
        "destination": destination_now(root),
        "tags": tags | dict(labels or {}) | _git_tags(root),
        "parameters": flatten(parameters),
        "stage_parameters": flatten(stage_parameters or {}),
    }
    return SpoolTracker(Spool.new(root, entry, stage), start, courier, monitor)


class _Ended(NamedTuple):
    """A spool that nobody writes any more, and whether its run has finished."""

    spool: Spool
    is_finished: bool


def _ended(root: Path, identity: Mapping[str, str | None]) -> _Ended | None:
    """Return the newest spool of an identity that nobody writes."""
    for spool, _ in newest_first(root, **identity):
        if not spool.is_being_written():
            try:
                *_, (last, _end) = spool.events()
            except FileNotFoundError:  # sent completely since, and set aside: it is there now
                return _ended(root, identity)
            return _Ended(spool, last["event"] == "end" and last["status"] == "FINISHED")
    return None


def flatten(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Flatten nested mappings to dotted names with JSON text as values.

    >>> flatten({"model": {"family": "mamba2", "lengths": (16, 32)}})
    {'model.family': 'mamba2', 'model.lengths': '[16, 32]'}
    """
    return {
        name: value if isinstance(value, str) else json.dumps(value, default=str)
        for name, value in dotted(parameters)
    }


def _git_tags(root: Path) -> dict[str, str]:
    """Return the commit, and whether tracked files differ from it; nothing outside of git."""
    try:
        commit, changes = (
            subprocess.run(
                ["git", *command],
                cwd=root,
                capture_output=True,
                text=True,
                check=True,
                timeout=_GIT_SECONDS,
            ).stdout.strip()
            for command in (
                ["rev-parse", "HEAD"],
                ["status", "--porcelain", "--untracked-files=no"],
            )
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"mlflow.source.git.commit": commit, "git.dirty": str(bool(changes)).lower()}
