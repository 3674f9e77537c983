"""What the stages of entries leave behind: files in ``results/`` and a run in the tracking."""

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from implicit_models.checksums import SUFFIX, write_checksums
from implicit_models.families.parameters import ModelParameters
from implicit_models.families.table import OTHERS
from implicit_models.parameters import Parameters, digest, read_section, without_tests
from implicit_models.parameters.dotted import dotted
from implicit_models.parameters.names import IMPLICIT
from implicit_models.tracking.digests import content_digest, data_digest, is_recorded
from implicit_models.tracking.links import entry_page, is_server
from implicit_models.tracking.mlflow import deliver, parent_run_id
from implicit_models.tracking.names import TEST
from implicit_models.tracking.opening import open_tracker
from implicit_models.tracking.stores import destination_now
from implicit_models.tracking.tracker import Tracker
from stages.common import RESULTS, write_csv, write_json

_PROJECT = "implicit-models"


def open_run(
    table: str,
    name: str,
    stage: str,
    parameters: Mapping[str, Parameters],
    *,
    entry: Mapping[str, Any] | None = None,
    group: str | None = None,
    resume_key: str | None = None,
    finished_counts: bool = False,
    tags: Mapping[str, str] | None = None,
) -> Tracker:
    """Open the tracker of a stage of an entry.

    All are in one experiment, with the family and the kind of model as tags.

    Parameters
    ----------
    parameters
        The sections that are the stage's own.
    entry
        The entry with its defaults filled in, where the stage reads all of it.
    group
        Digest of what the entry has in common with those that differ from it by their seed alone
        (`stages.entries.seed_group`, and the data); the stage that begins the entry's run says it.
    resume_key, finished_counts
        As in `open_tracker`.
    tags
        Of the run, beside those that all have.
    """
    section = read_section(f"{table}.{name}", dict[str, Any])
    family = _family(table, name, section["model"])
    labels = {"family": family, "kind": _kind(table, name, section["model"])}
    if group is not None:
        labels["seed_group"] = f"{_data(section)} {family} {group[:8]}"
    return open_tracker(
        entry=name,
        stage=stage,
        parameters=_aligned(without_tests(entry or section)),
        labels=labels | dict(tags or {}),
        stage_parameters={key: section.model_dump() for key, section in parameters.items()},
        dataset=_data(section),
        seed=section.get("seed"),
        digest=entry_digest(table, name),
        resume_key=resume_key,
        finished_counts=finished_counts,
        root=_repository(),
    )


def open_test(
    table: str,
    name: str,
    stage: str,
    parameters: Mapping[str, Parameters],
    *,
    model: Path,
    data: Path,
    tested_as: str,
    role: str = "evaluate",
) -> Tracker:
    """Open the tracker of a test of a model; see `open_run`.

    A test that was killed, be it after its end and before DVC has recorded it, is one run in MLflow
    with the one that DVC then starts in its place.

    Parameters
    ----------
    model, data
        What is tested, and on what.
    tested_as, role
        Name of the entry whose stage it is, and the folder of ``code`` that it depends on.
    """
    read = (model, Path("code", role, tested_as))
    inputs = {path.as_posix(): content_digest(path) for path in read if path.exists()}
    sections = {key: section.model_dump() for key, section in parameters.items()}
    return open_run(
        table,
        name,
        stage,
        parameters,
        resume_key=digest(sections, inputs, data_digest(data)),
        finished_counts=not is_recorded(os.environ.get("DVC_STAGE"), inputs),
    )


def track_data(tracker: Tracker, dataset: str, context: str) -> None:
    """Track that a stage reads ``data/DATASET``, under the digest that DVC knows it by."""
    folder = Path("data", dataset)
    digest = data_digest(folder)
    if digest is not None:
        tracker.log_dataset(dataset, digest, str(folder), context)


def track_model(tracker: Tracker, table: str, name: str, folder: Path, step: int) -> None:
    """Track an entry's final model, with its files, as a version in the registry."""
    registered = _registered_model(table, name)
    tracker.log_model(
        folder, content_digest(folder), phase=folder.name, step=step, registered=registered
    )


def track_phase(tracker: Tracker, folder: Path, step: int) -> None:
    """Track the model that an entry's next phase goes on from; its files stay in DVC's cache."""
    tracker.log_model(folder, content_digest(folder), phase=folder.name, step=step)


def track_test(
    tracker: Tracker, metrics: Mapping[str, Any], headline: Mapping[str, Any], prefix: str = TEST
) -> None:
    """Track what a test has found: all in the stage's run, the headline in the entry's too."""
    shown = numbers(headline, prefix)
    tracker.log_metrics(shown)
    rest = {name: value for name, value in numbers(metrics, prefix).items() if name not in shown}
    tracker.log_metrics(rest, level="stage")


def track_score(
    tracker: Tracker, table: str, name: str, folder: Path, score: tuple[str, float, bool]
) -> None:
    """Track what an entry's final model has reached on its test data.

    Parameters
    ----------
    folder
        Of the model.
    score
        The metric among the test's, its value, and whether higher is better.
    """
    metric, value, higher_is_better = score
    tracker.score_model(
        _registered_model(table, name),
        content_digest(folder),
        f"{TEST}{metric}",
        value,
        higher_is_better=higher_is_better,
        dataset_digest=data_digest(Path("data", _dataset(table, name))),
    )


def tracked_run_id(table: str, name: str) -> str | None:
    """Look up the tracked run of an entry as its parameters are now, once everything is sent."""
    _deliver_once(_repository())
    return parent_run_id(name, entry_digest(table, name), _repository())


def tracked_address(name: str, run_id: str) -> str | None:
    """Look up the page of an entry's run, where a server has it as far as we know."""
    return entry_page(_repository(), name, run_id)


def tracking_server() -> str | None:
    """Return the address of MLflow, where the environment names a server; it has no credentials."""
    destination = destination_now(_repository())
    return destination if is_server(destination) else None


def write_results(name: str, stage: str, files: Mapping[str, Any], tracker: Tracker) -> None:
    """Write and track an entry's metrics (``.json``, a mapping) and plots (``.csv``, rows).

    Their checksums are written last, for who reads them.
    """
    folder = RESULTS / "runs" / name
    for file, content in files.items():
        path = folder / file
        (write_json if path.suffix == ".json" else write_csv)(path, content)
        tracker.log_artifact(path, "results")
    write_checksums(folder / f"{stage}{SUFFIX}", [folder / file for file in files])


def numbers(metrics: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Return the numbers of nested metrics under dotted names, as the tracking takes them."""
    return {
        name: value for name, value in dotted(metrics, prefix) if isinstance(value, int | float)
    }


@functools.cache
def _deliver_once(root: Path) -> None:
    deliver(root)


def entry_digest(table: str, name: str) -> str:
    """Digest what an entry is trained with, so that all its stages and tests have the same one."""
    return digest(without_tests(read_section(f"{table}.{name}", dict[str, Any])))


def _aligned(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Add to an implicit entry, as ``training``, what an explicit one has under that name.

    A comparison of both then has one column for each of these, beside those of the two phases.
    """
    if not {"bounded", "free"} <= entry.keys():
        return dict(entry)
    bounded, free = entry["bounded"], entry["free"]
    total = bounded.get("total_training_steps")
    if total is None:
        total = bounded["num_training_steps"] + free["num_training_steps"]
    lengths = {**free["lengths"], **{key: bounded["lengths"][key] for key in ("minimum", "start")}}
    lengths.pop("growth_steps", None)
    whole = {"num_training_steps": total, "lengths": lengths}
    return {**entry, "training": whole | {"decay_steps": free["decay_steps"]}}


def _family(table: str, name: str, model: Any) -> str:
    # The checkpoints of others and what is made of them belong in one comparison.
    is_of_others = not isinstance(model, Mapping) or "source" in model
    if is_of_others:
        return OTHERS
    return read_section(f"{table}.{name}.model", ModelParameters).family


def _kind(table: str, name: str, model: Any) -> str:
    if table in IMPLICIT or not isinstance(model, Mapping):
        return "implicit" if table in IMPLICIT else "explicit"
    return read_section(f"{table}.{name}.model", ModelParameters).kind


def _data(section: Mapping[str, Any]) -> str:
    return next(section[key] for key in ("dataset", "tasks", "corpus") if key in section)


def _dataset(table: str, name: str) -> str:
    return read_section(f"{table}.{name}.dataset", str)


def _registered_model(table: str, name: str) -> str:
    family = _family(table, name, read_section(f"{table}.{name}", dict[str, Any])["model"])
    return re.sub(r"[/:]", "-", f"{_PROJECT}-{family}-{_dataset(table, name)}")


def _repository() -> Path:
    """Return the repository with the tracking; DVC runs queued experiments in a copy of it."""
    return Path(os.environ.get("DVC_ROOT", "."))
