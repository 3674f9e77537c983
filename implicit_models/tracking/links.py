"""Where a stage's run is in MLflow, as far as this repository knows; MLflow is not asked."""

import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from implicit_models.tracking.spool import newest_first


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
    """Return the newest run of a DVC stage that was tracked in a repository.

    None where the stage never was tracked there, or its newest run is not sent yet.

    Parameters
    ----------
    root
        The repository.
    dvc_stage
        Name of the stage in DVC, ``"train_free@a5_implicit_mamba2"``.
    """
    for spool, _ in newest_first(root, dvc_stage=dvc_stage):
        sent = spool.read_sent()
        if not (sent.run_id and sent.experiment_id):
            return None
        page = run_page(sent.destination, sent.experiment_id, sent.run_id)
        return TrackedRun(sent.run_id, sent.experiment_id, page)
    return None


def waits_to_be_sent(root: Path, dvc_stage: str) -> bool:
    """Return whether a DVC stage was tracked, and its newest run is not in MLflow yet."""
    was_tracked = next(newest_first(root, dvc_stage=dvc_stage), None) is not None
    return was_tracked and tracked_run(root, dvc_stage) is None


def entry_page(root: Path, entry: str, run_id: str) -> str | None:
    """Return the address of the page of an entry's run; None where no server of ours has it.

    Parameters
    ----------
    run_id
        Of the run that holds the entry's stages.
    """
    for spool, _ in newest_first(root, entry=entry):
        sent = spool.read_sent()
        if sent.parent_run_id == run_id and sent.experiment_id:
            return run_page(sent.destination, sent.experiment_id, run_id)
    return None


def is_server(destination: str | None) -> bool:
    """Return whether a tracking store is a server, whose pages can be opened."""
    return urllib.parse.urlsplit(destination or "").scheme in ("http", "https")


def run_page(server: str | None, experiment_id: str, run_id: str) -> str | None:
    """Return the address of a run's page on a server; None for every other store."""
    if not is_server(server):
        return None
    return f"{server}".rstrip("/") + f"/#/experiments/{experiment_id}/runs/{run_id}"
