"""The opening of a stage's tracker: which run of which entry it records, and for which store."""

import contextlib
import os
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implicit_models import parameters as parameters_module
from implicit_models.tracking.courier import Courier
from implicit_models.tracking.recording import SpoolTracker, flatten
from implicit_models.tracking.spool import Event, Spool, all_spools, open_spools
from implicit_models.tracking.stores import destination_now
from implicit_models.tracking.system import SystemMonitor

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
    experiment: str = DEFAULT_EXPERIMENT,
    root: Path = Path("."),
    send: bool = True,
) -> SpoolTracker:
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
        Of the entry, logged to its run and to the stage's: nested mappings or dataclasses, which
        get dotted names.
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
    experiment
        Name of the experiment in MLflow.
    root
        The repository.
    send
        Whether to send in the background while the stage runs; otherwise events wait for the
        next stage or for ``python -m implicit_models.tracking.sync``.
    """
    digest = digest or parameters_module.digest(parameters)
    courier = Courier(root) if send else None
    identity = {"entry": entry, "stage": stage, "digest": digest, "resume_key": resume_key}
    if resume_key is not None and (spool := _unfinished(root, identity)):
        with contextlib.suppress(BlockingIOError):
            return SpoolTracker(spool, {}, courier, SystemMonitor.from_environment(root))
    known = {
        "entry": entry,
        "dataset": dataset,
        "seed": None if seed is None else str(seed),
        "parameters.digest": digest,
        "dvc.experiment": os.environ.get("DVC_EXP_NAME"),
    }
    tags = {name: value for name, value in known.items() if value is not None}
    tags |= dict(labels or {}) | _git_tags(root)
    start = identity | {
        "parent": uuid.uuid4().hex if stage in STARTING_STAGES else _parent_key(root, identity),
        "experiment": os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment,
        "destination": destination_now(root),
        "tags": tags,
        "stage_tags": {
            "stage": stage,
            "dvc.stage": os.environ.get("DVC_STAGE", f"{stage}@{entry}"),
        },
        "parameters": flatten(parameters),
        "stage_parameters": flatten(stage_parameters or {}),
    }
    spool = Spool.new(root, entry, stage)
    return SpoolTracker(spool, start, courier, SystemMonitor.from_environment(root))


def _unfinished(root: Path, identity: Event) -> Spool | None:
    """Find the newest spool of an identity, if nobody writes it and it was not finished."""
    for spool in reversed(open_spools(root)):
        start = spool.start()
        if start and identity.items() <= start.items() and not spool.is_being_written():
            *_, (last, _end) = spool.events()
            is_finished = last["event"] == "end" and last["status"] == "FINISHED"
            return None if is_finished else spool
    return None


def _parent_key(root: Path, identity: Event) -> str | None:
    """Return the key of the newest run of the same entry and digest; None leaves it to MLflow."""
    for spool in reversed(all_spools(root)):
        start = spool.start()
        if start and all(start[name] == identity[name] for name in ("entry", "digest")):
            return start["parent"]
    return None


def _git_tags(root: Path) -> dict[str, str]:
    """Return the commit, and whether tracked files differ from it; nothing outside of git."""
    answers = []
    for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        try:
            answer = subprocess.run(
                ["git", *command],
                cwd=root,
                capture_output=True,
                text=True,
                check=True,
                timeout=_GIT_SECONDS,
            )
        except (OSError, subprocess.SubprocessError):
            return {}
        answers.append(answer.stdout.strip())
    commit, changes = answers
    return {"mlflow.source.git.commit": commit, "git.dirty": str(bool(changes)).lower()}
