"""Where a stage's run is in MLflow, as far as this repository knows; MLflow is not asked."""

import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from implicit_models.tracking.spool import Progress, all_spools


@dataclass(frozen=True)
class TrackedRun:
    """A run in MLflow.

    Attributes
    ----------
    run_id, experiment_id
        Of the stage's run and of its experiment.
    address
        Of the run's page, where the tracking store is a server; it holds no credentials.
    """

    run_id: str
    experiment_id: str
    address: str | None


def tracked_run(root: Path, dvc_stage: str) -> TrackedRun | None:
    """Look up the newest run of a DVC stage that was tracked in a repository.

    Returns None where the stage never was tracked there, or its newest run is not sent yet.

    Parameters
    ----------
    root
        The repository.
    dvc_stage
        Name of the stage in DVC, ``"train_free@a5_implicit_mamba2"``.
    """
    sent = _progress(root, dvc_stage)
    if sent is None or not (sent.run_id and sent.experiment_id):
        return None
    page = run_page(sent.destination, sent.experiment_id, sent.run_id)
    return TrackedRun(sent.run_id, sent.experiment_id, page)


def waits_to_be_sent(root: Path, dvc_stage: str) -> bool:
    """Whether a DVC stage was tracked in a repository and its newest run is not in MLflow yet."""
    sent = _progress(root, dvc_stage)
    return sent is not None and not (sent.run_id and sent.experiment_id)


def _progress(root: Path, dvc_stage: str) -> Progress | None:
    for spool in reversed(all_spools(root)):
        start = spool.start()
        if start and start["stage_tags"]["dvc.stage"] == dvc_stage:
            return spool.read_progress()
    return None


def run_page(server: str | None, experiment_id: str, run_id: str) -> str | None:
    """Give the address of a run's page on a server; None for every other store."""
    if urllib.parse.urlsplit(server or "").scheme not in ("http", "https"):
        return None
    return f"{server}".rstrip("/") + f"/#/experiments/{experiment_id}/runs/{run_id}"
