"""Runs in MLflow: one for each entry of ``runs`` or ``baselines``, its stages as children.

Metrics go to the stage's run and to the entry's, so that whole entries line up in a comparison,
training curves included. Nothing here imports MLflow before it has to talk to it.
"""

import contextlib
import dataclasses
import functools
import logging
import os
import re
import shutil
import subprocess
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from implicit_models import parameters as parameters_module
from implicit_models.tracking.courier import Courier
from implicit_models.tracking.recording import SpoolTracker, flatten
from implicit_models.tracking.spool import (
    FOLDER,
    Event,
    Progress,
    Spool,
    all_spools,
    locked,
    open_spools,
)

DEFAULT_EXPERIMENT = "state-tracking"
STARTING_STAGES = frozenset({"train_bounded", "train_baseline"})

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
_GIT_SECONDS = 10.0
_POLL_SECONDS = 0.05
# MLflow's own limits (mlflow.utils.validation).
_MAX_METRICS = 1000
_MAX_PARAMETERS = 100
_MAX_KEY = 250
_MAX_VALUE = 6000


def open_tracker(
    *,
    entry: str,
    stage: str,
    parameters: Mapping[str, Any],
    stage_parameters: Mapping[str, Any] | None = None,
    dataset: str,
    digest: str | None = None,
    seed: int | None = None,
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
            return SpoolTracker(spool, {}, courier)
    labels = {
        "entry": entry,
        "dataset": dataset,
        "seed": None if seed is None else str(seed),
        "parameters.digest": digest,
        "dvc.experiment": os.environ.get("DVC_EXP_NAME"),
    }
    tags = {name: value for name, value in labels.items() if value is not None} | _git_tags(root)
    start = identity | {
        "parent": uuid.uuid4().hex if stage in STARTING_STAGES else _parent_key(root, identity),
        "experiment": os.environ.get("MLFLOW_EXPERIMENT_NAME") or experiment,
        "destination": _destination_now(root),
        "tags": tags,
        "stage_tags": {
            "stage": stage,
            "dvc.stage": os.environ.get("DVC_STAGE", f"{stage}@{entry}"),
        },
        "parameters": flatten(parameters),
        "stage_parameters": flatten(stage_parameters or {}),
    }
    return SpoolTracker(Spool.new(root, entry, stage), start, courier)


def parent_run_id(entry: str, digest: str, root: Path = Path(".")) -> str | None:
    """Look up the id of the newest MLflow run of an entry with a digest of parameters.

    Returns None where it has not been sent yet, does not exist or cannot be reached. What was sent
    from `root` is known without asking MLflow.
    """
    runs = [
        (spool, start)
        for spool in all_spools(root)
        if (start := spool.start()) and (start["entry"], start["digest"]) == (entry, digest)
    ]
    if runs:
        newest = runs[-1][1]["parent"]
        ids = [spool.read_progress().parent_run_id for spool, s in runs if s["parent"] == newest]
        return next((run_id for run_id in reversed(ids) if run_id), None)
    destination = _destination_now(root)
    if destination is None and not _default_database(root).exists():
        return None
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_EXPERIMENT
    try:
        with _environment():
            client = connect(_address(destination, root))
            experiment = client.get_experiment_by_name(name)
            return experiment and _find_parent(client, experiment.experiment_id, entry, digest)
    except Exception as error:
        _logger.info("cannot look up the run of %s: %s", entry, _reason(error))
        return None


def deliver(root: Path = Path("."), patience: float = 5.0) -> None:
    """Wait until everything that stages have recorded is sent, and warn of what cannot be.

    What a courier has not sent after `patience` seconds is sent from here.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(
        _has_news(spool, start["destination"])
        for spool in open_spools(root)
        if (start := spool.start()) and not spool.is_being_written()
    ):
        time.sleep(_POLL_SECONDS)
    for spool, problem in Sender(root).send(open_spools(root)).items():
        _logger.warning("tracking: %s could not be sent to MLflow: %s", spool.path.name, problem)


def connect(address: str) -> Any:
    """Connect to a tracking store; the one place that imports MLflow's client."""
    from mlflow import MlflowClient

    return MlflowClient(address)


class Sender:
    """Sends spools to MLflow.

    Any number of senders may work on one repository: a spool and the creation of runs are locked.
    An event is acknowledged after it was accepted. Whoever dies in between sends it again, with
    its original time, and MLflow keeps one row for equal (run, name, time, step, value).

    Parameters
    ----------
    root
        The repository.
    destination
        Tracking store for everything, instead of the one each spool names.
    connect
        Makes a client from an address.
    """

    def __init__(
        self,
        root: Path,
        destination: str | None = None,
        connect: Callable[[str], Any] = connect,
    ) -> None:
        self._root = root
        self._destination = destination
        self._connect = connect
        self._clients: dict[str, Any] = {}

    def send(self, spools: Sequence[Spool]) -> dict[Spool, str]:
        """Send what is new in the spools, and say of each that could not be sent why.

        Never raises because of a store. One that does not answer is asked once for all spools.
        """
        problems: dict[Spool, str] = {}
        unreachable: dict[str | None, str] = {}
        with _environment():
            for spool in spools:
                start = spool.start()
                if start is None:
                    continue
                destination = self._destination or start["destination"]
                if not _has_news(spool, destination):
                    continue
                try:
                    if destination in unreachable:
                        raise _UnreachableError(unreachable[destination])
                    self._send(spool, start, destination)
                except _UnreachableError as error:
                    problems[spool] = unreachable[destination] = str(error)
                except Exception as error:
                    problems[spool] = _reason(error)
        return problems

    def _send(self, spool: Spool, start: Event, destination: str | None) -> None:
        with locked(spool.lock_path):
            if not spool.path.exists():  # sent by someone else while we waited
                spool.lock_path.unlink(missing_ok=True)
                return
            is_alive = spool.is_being_written()
            client, experiment_id = self._experiment(start, destination)
            progress = spool.read_progress()
            if progress.destination != destination:
                progress = Progress(destination=destination)
            delivery = _Delivery(client, spool, start, progress)
            with locked(self._root / FOLDER / "runs.lock"):
                delivery.ensure_runs(experiment_id)
            try:
                delivery.send_events()
                if not is_alive:
                    delivery.conclude()
            except Exception as error:
                if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
                    spool.write_progress(Progress())  # the run was deleted: begin anew next time
                raise

    def _experiment(self, start: Event, destination: str | None) -> tuple[Any, str]:
        """Return the client and the experiment's id: the first exchange with the store."""
        address = _address(destination, self._root)
        try:
            # The lock is for the creation of an SQLite file and of the experiment.
            with locked(self._root / FOLDER / "runs.lock"):
                client = self._clients.get(address) or self._connect(address)
                experiment = client.get_experiment_by_name(start["experiment"])
                if experiment is None:
                    location = _artifact_location(address)
                    experiment_id = client.create_experiment(start["experiment"], location)
                else:
                    experiment_id = experiment.experiment_id
        except Exception as error:
            raise _UnreachableError(_reason(error)) from error
        self._clients[address] = client
        return client, experiment_id


def _has_news(spool: Spool, destination: str | None) -> bool:
    progress = spool.read_progress()
    is_new = not progress.run_id or progress.destination != destination
    is_due = progress.status in ("RUNNING", "FINISHED") and not spool.is_being_written()
    return is_new or is_due or spool.size() > progress.offset


class _UnreachableError(Exception):
    """The tracking store itself does not answer."""


class _Delivery:
    """The sending of one spool."""

    def __init__(self, client: Any, spool: Spool, start: Event, progress: Progress) -> None:
        self._client = client
        self._spool = spool
        self._start = start
        self._progress = progress

    def ensure_runs(self, experiment_id: str) -> None:
        """Find or create the entry's run and the stage's."""
        if self._progress.run_id:
            return
        start, key = self._start, self._start["parent"] or self._spool.path.stem
        parent = _find_run(self._client, experiment_id, {"tracking.parent": key})
        if parent is None and start["parent"] is None:
            parent = _find_parent(self._client, experiment_id, start["entry"], start["digest"])
        if parent is None:
            tags = start["tags"] | {"tracking.level": "entry", "tracking.parent": key}
            parent = self._create_run(experiment_id, start["entry"], tags)
        child = _find_run(self._client, experiment_id, {"tracking.run": self._spool.path.stem})
        if child is None:
            tags = start["tags"] | start["stage_tags"]
            tags |= {"tracking.level": "stage", "tracking.run": self._spool.path.stem}
            tags |= {"mlflow.parentRunId": parent}
            child = self._create_run(experiment_id, start["stage"], tags)
        self._acknowledge(run_id=child, parent_run_id=parent)

    def send_events(self) -> None:
        """Send every event that was not acknowledged yet."""
        from mlflow.entities import Metric

        stage_metrics: list[Metric] = []
        entry_metrics: list[Metric] = []

        def send_metrics() -> None:
            for run_id, metrics in (
                (self._progress.run_id, stage_metrics),
                (self._progress.parent_run_id, entry_metrics),
            ):
                self._log(run_id, "metrics", metrics, _MAX_METRICS)
                metrics.clear()
            self._acknowledge(offset=end)

        end = self._progress.offset
        for event, next_end in self._spool.events(end):
            values = event["values"] if event["event"] == "metrics" else {}
            num_waiting = max(len(stage_metrics), len(entry_metrics))
            if num_waiting and (not values or num_waiting + len(values) > _MAX_METRICS):
                send_metrics()
            level = event["level"] if values else None
            metrics = [
                Metric(_key(name), value, event["time"], event["step"])
                for name, value in values.items()
            ]
            if level in ("both", "stage"):
                stage_metrics += metrics
            if level in ("both", "entry") or (level == "new entry" and self._is_first_of_entry):
                entry_metrics += metrics
            end = next_end
            if not values:
                self._apply(event)
                self._acknowledge(offset=end)
        send_metrics()

    def conclude(self) -> None:
        """Note the death of a writer that left no end; set a finished spool aside."""
        if self._progress.status == "FINISHED":
            self._spool.retire()
        elif self._progress.status == "RUNNING":
            self._set_status("KILLED")
            self._acknowledge()

    def _apply(self, event: Event) -> None:
        kind = event["event"]
        if kind == "start":
            self._progress = dataclasses.replace(self._progress, status="RUNNING")
            self._log_parameters(event["parameters"], event["stage_parameters"])
        elif kind == "resume":
            self._set_status("RUNNING")
        elif kind == "artifact":
            self._log_artifact(event)
        elif kind == "end":
            self._set_status(event["status"], event["time"])

    @functools.cached_property
    def _is_first_of_entry(self) -> bool:
        """Whether the entry's run was made for this stage, because there was none to join."""
        if self._start["parent"] is not None:
            return False
        parent = self._client.get_run(self._progress.parent_run_id)
        return parent.data.tags["tracking.parent"] == self._spool.path.stem

    def _log_parameters(self, entry: Mapping[str, str], stage: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        # Stages may spell a value of the entry differently, 0 and 0.0: the first one counts.
        for run_id, values, level in (
            (self._progress.run_id, {**entry, **stage}, logging.WARNING),
            (self._progress.parent_run_id, entry, logging.DEBUG),
        ):
            params = [Param(_key(name), _value(value)) for name, value in values.items()]
            self._log(run_id, "params", params, _MAX_PARAMETERS, level)

    def _log_artifact(self, event: Event) -> None:
        copy = self._spool.artifact_folder / event["copy"]
        if not copy.exists():  # sent already, and not acknowledged
            return
        with self._skipping_what_is_rejected(f"{copy.name} as an artifact"):
            self._client.log_artifact(self._progress.run_id, str(copy), event["folder"])
        shutil.rmtree(copy.parent)

    def _set_status(self, status: str, end_time: int | None = None) -> None:
        for run_id in (self._progress.run_id, self._progress.parent_run_id):
            if status == "RUNNING":
                self._client.update_run(run_id, status=status)
            else:
                self._client.set_terminated(run_id, status, end_time)
        self._progress = dataclasses.replace(self._progress, status=status)

    def _log(
        self,
        run_id: str | None,
        kind: str,
        items: Sequence[Any],
        limit: int,
        level: int = logging.WARNING,
    ) -> None:
        for batch in _batches(items, limit):
            self._log_batch(run_id, kind, batch, level)

    def _log_batch(self, run_id: str | None, kind: str, batch: Sequence[Any], level: int) -> None:
        """Log at once; what is rejected is narrowed down to its culprits, and only they are left.

        Everything else would wait behind them forever.
        """
        half = len(batch) // 2
        if not half:
            with self._skipping_what_is_rejected(f"{batch[0].key} in {kind}", level):
                self._client.log_batch(run_id, **{kind: batch})
            return
        try:
            self._client.log_batch(run_id, **{kind: batch})
        except Exception as error:
            if not _is_rejection(error):
                raise
            for part in (batch[:half], batch[half:]):
                self._log_batch(run_id, kind, part, level)

    def _create_run(self, experiment_id: str, name: str, tags: Mapping[str, str]) -> str:
        tags = {_key(key): _value(value) for key, value in tags.items()}
        start_time = self._start["time"]
        return self._client.create_run(experiment_id, start_time, tags, name).info.run_id

    def _acknowledge(self, **changes: Any) -> None:
        self._progress = dataclasses.replace(self._progress, **changes)
        self._spool.write_progress(self._progress)

    @contextlib.contextmanager
    def _skipping_what_is_rejected(self, what: str, level: int = logging.WARNING) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not _is_rejection(error):
                raise
            _logger.log(level, "MLflow rejected %s: %s", what, _reason(error))


def _find_parent(client: Any, experiment_id: str, entry: str, digest: str) -> str | None:
    """Find the newest run of an entry."""
    labels = {"tracking.level": "entry", "entry": entry, "parameters.digest": digest}
    return _find_run(client, experiment_id, labels)


def _find_run(client: Any, experiment_id: str, tags: Mapping[str, str]) -> str | None:
    conditions = (f"tags.`{_key(name)}` = '{value}'" for name, value in tags.items())
    runs = client.search_runs(
        [experiment_id],
        " and ".join(conditions),
        max_results=1,
        order_by=["attributes.start_time DESC"],
    )
    return runs[0].info.run_id if runs else None


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


def _destination_now(root: Path) -> str | None:
    """Return the tracking store to record in a spool: no credentials, no relative path.

    A relative SQLite file is one of the repository's: DVC may run the stage in a passing copy.

    None is the default store, wherever the repository will then be.
    """
    address = os.environ.get("MLFLOW_TRACKING_URI")
    if not address:
        return None
    if match := re.fullmatch(r"sqlite:///([^/].*)", address):
        return f"sqlite:///{root.absolute() / match[1]}"
    return _without_credentials(address)


def _address(destination: str | None, root: Path) -> str:
    """Return the address of a recorded store, with the environment's credentials for it."""
    if destination is None:
        return f"sqlite:///{_default_database(root)}"
    if destination == _destination_now(root):
        address = os.environ["MLFLOW_TRACKING_URI"]
        return destination if destination.startswith("sqlite:") else address
    return destination


def _default_database(root: Path) -> Path:
    return root.absolute() / "mlflow.db"


def _artifact_location(address: str) -> str | None:
    """Return the place of artifacts: beside an SQLite file; a server has its own."""
    match = re.fullmatch(r"sqlite:///(/.*)", address)
    return str(Path(match[1]).parent / "mlartifacts") if match else None


def _without_credentials(text: str) -> str:
    return re.sub(r"//[^/@\s]+@", "//", text)


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return _without_credentials(f"{type(error).__name__}: {lines[0][:300]}")


def _is_rejection(error: Exception) -> bool:
    """Whether the store answered that it will never take this."""
    return getattr(error, "error_code", None) == "INVALID_PARAMETER_VALUE"


def _key(name: str) -> str:
    name = re.sub(r"[^\w.\-/ :]", "_", name)
    return name if len(name) <= _MAX_KEY else _shortened(name, _MAX_KEY)


def _value(value: str) -> str:
    return value if len(value) <= _MAX_VALUE else _shortened(value, _MAX_VALUE)


def _shortened(text: str, length: int) -> str:
    """Cut a text, and let the rest of it count through a digest."""
    mark = f"..{parameters_module.digest(text)[:16]}"
    return text[: length - len(mark)] + mark


def _batches(items: Sequence[T], limit: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), limit):
        yield items[start : start + limit]


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Bound MLflow's requests where the environment does not, and keep its warnings to itself."""
    added = [name for name in _ENVIRONMENT if name not in os.environ]
    os.environ.update({name: _ENVIRONMENT[name] for name in added})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in added:
            os.environ.pop(name, None)
