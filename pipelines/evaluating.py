"""Bring the evaluation of one entry, or the report, up to date, and train nothing for it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from implicit_models.parameters.errors import similar_name
from implicit_models.parameters.structure import load_plain
from pipelines.dag import DagStatus, Stage, UnknownTargetError, dag_status, read_dag
from pipelines.experiment import reproduce


class NotTrainedError(ValueError):
    """An entry whose model DVC would train first, or of which this cannot be told now."""


class StaleResultsError(ValueError):
    """Results of other parameters, code or data than there are now."""


def evaluate_entry(root: Path, entry: str) -> int:
    """Run what evaluates an entry and is not up to date; return the exit status of `dvc repro`.

    Raises
    ------
    UnknownTargetError
        Where nothing evaluates an entry of this name.
    NotTrainedError
        Where DVC would train a model: it empties the model's folder before.
    """
    tests = [stage for stage in read_dag(root).values() if stage.kind.startswith("evaluate")]
    names = [stage.name for stage in tests if stage.entry == entry]
    if not names:
        raise UnknownTargetError(_unknown(entry, [stage.entry for stage in tests]))
    stages = read_dag(root, names)
    trainings = [stage for stage in stages.values() if _trains(stage)]
    ran = _have_run(root)
    for stage in trainings:
        if stage.name not in ran or not all((root / out).exists() for out in stage.outs):
            raise NotTrainedError(_not_trained(root, stage, entry, names))
    # Which trainings are up to date is known once the code and the data that they read are.
    status, found = _up_to_date(root, _before_trainings(stages, names), names)
    if status:
        return status
    for stage in trainings:
        if stage.name in found.in_use:
            raise NotTrainedError(f"{stage.name} is in use: call again when it has ended")
        if stage.name not in found.unchanged:
            raise NotTrainedError(_not_trained(root, stage, entry, names))
    return reproduce(root, ["--single-item", *names])


def report_entries(root: Path) -> int:
    """Write the report of the results that are there; return the exit status of `dvc repro`.

    Entries that lack results are named in the report.

    Raises
    ------
    NotTrainedError
        Where the code is being written.
    StaleResultsError
        Where an entry has all its results, but not with these parameters, this code and this data,
        or something that the report is made of is in use, so that this cannot be told.
    """
    status, found = _up_to_date(root, ["code"], ["report"])
    if status:
        return status
    if "report" in found.in_use:
        first = next(name for name in found.stages if name in found.in_use)
        raise StaleResultsError(
            f"{first} is in use: call again when it has ended; `python -m stages.report` reports "
            "what is there"
        )
    written: dict[str, list[Stage]] = {}
    for stage in found.stages.values():
        if stage.entry and _results(stage):
            written.setdefault(stage.entry, []).append(stage)
    stale = [
        [stage.name for stage in stages if stage.name in found.stale]
        for stages in written.values()
        if all((root / out).exists() for stage in stages for out in _results(stage))
    ]
    if names := [name for of_entry in stale for name in of_entry[:1]]:
        raise StaleResultsError(
            f"results are not of this params.yaml, this code and this data: {', '.join(names)} "
            "would run again; `dvc repro` brings all up to date, and reports it; "
            "`python -m stages.report` reports what is there"
        )
    return reproduce(root, ["--single-item", "report"])


def _up_to_date(root: Path, first: Sequence[str], names: list[str]) -> tuple[int, DagStatus]:
    """Run those of the first stages that are not up to date; return DVC's status and of what is.

    Only these: DVC wants every stage that it looks at for itself, also one that others read.
    """
    found = dag_status(root, names)
    wanted = [name for name in first if name not in found.unchanged]
    if not wanted:
        return 0, found
    if busy := [name for name in wanted if name in found.in_use]:
        raise NotTrainedError(f"{busy[0]} is in use: call again when it has ended")
    return reproduce(root, ["--single-item", *wanted]), dag_status(root, names)


def _results(stage: Stage) -> list[str]:
    """Return what a stage writes that the report reads."""
    return [out for out in stage.outs if Path(out).parts[:2] == ("results", "runs")]


def _have_run(root: Path) -> set[str]:
    """Return the names of the stages of which DVC has noted what they have run with."""
    lock = root / "dvc.lock"
    content = load_plain(lock.read_bytes()) if lock.exists() else None
    return {*((content or {}).get("stages") or ())}


def _before_trainings(stages: Mapping[str, Stage], names: list[str]) -> list[str]:
    """Return the stages before others of these that train nothing and wait for no training."""
    found: list[str] = []
    for stage in stages.values():  # parents first
        if not _trains(stage) and stage.name not in names and {*stage.parents} <= {*found}:
            found.append(stage.name)
    return found


def _trains(stage: Stage) -> bool:
    return stage.kind.startswith("train_")


def _unknown(entry: str, known: list[str]) -> str:
    closest = similar_name(entry, known)
    meant = f"the closest is {closest}; " if closest else ""
    return (
        f"{entry} is no entry of params.yaml; {meant}allowed are {', '.join(known)}, or a folder "
        "with --tasks"
    )


def _not_trained(root: Path, stage: Stage, entry: str, names: list[str]) -> str:
    folder = Path("models", stage.entry, "final")
    said = (
        f"the model of {entry} is not up to date: {stage.name} has not run with this params.yaml "
        f"and this code, or its files are gone; `dvc repro {' '.join(names)}` trains it, if DVC's "
        "cache does not have it, and evaluates it"
    )
    if (root / folder).is_dir():
        said += (
            f". It replaces {folder}: `python -m stages.evaluation.evaluate_benchmarks {entry}` "
            "evaluates what is there"
        )
    return said
