"""What the stages of entries leave behind: files in ``results/`` and a run in the tracking."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implicit_models.parameters import digest, read_section
from implicit_models.tracking.mlflow import deliver, open_tracker, parent_run_id
from implicit_models.tracking.tracker import Tracker
from stages.common import RESULTS, write_csv, write_json


def open_run(
    table: str,
    name: str,
    stage: str,
    parameters: Mapping[str, Any],
    *,
    entry: Mapping[str, Any] | None = None,
    resume_key: str | None = None,
) -> Tracker:
    """Open the tracker of a stage of an entry.

    Parameters
    ----------
    parameters
        The sections that are the stage's own.
    entry
        The entry with its defaults filled in, where the stage reads all of it.
    resume_key
        As in `open_tracker`.
    """
    section = read_section(f"{table}.{name}", dict[str, Any])
    return open_tracker(
        entry=name,
        stage=stage,
        parameters=entry or section,
        stage_parameters=parameters,
        dataset=next(section[key] for key in ("dataset", "tasks", "corpus") if key in section),
        seed=section.get("seed"),
        digest=entry_digest(table, name),
        resume_key=resume_key,
        root=_repository(),
    )


def tracked_run_id(table: str, name: str) -> str | None:
    """Look up the tracked run of an entry as its parameters are now, once everything is sent."""
    _deliver_once(_repository())
    return parent_run_id(name, entry_digest(table, name), _repository())


def write_results(name: str, files: Mapping[str, Any], tracker: Tracker) -> None:
    """Write and track an entry's metrics (``.json``, a mapping) and plots (``.csv``, rows)."""
    for file, content in files.items():
        path = RESULTS / "runs" / name / file
        (write_json if path.suffix == ".json" else write_csv)(path, content)
        tracker.log_artifact(path, "results")


def numbers(metrics: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Give the numbers of nested metrics under dotted names, as the tracking takes them."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            found[f"{prefix}{name}"] = value
    return found


@functools.cache
def _deliver_once(root: Path) -> None:
    deliver(root)


def entry_digest(table: str, name: str) -> str:
    """Digest a whole entry, so that all its stages have the same one."""
    return digest(read_section(f"{table}.{name}", dict[str, Any]))


def _repository() -> Path:
    """Give the repository that keeps the tracking; DVC runs queued experiments in a copy of it."""
    return Path(os.environ.get("DVC_ROOT", "."))
