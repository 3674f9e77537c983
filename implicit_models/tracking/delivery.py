"""The sending of one spool, event by event, to a client of MLflow that it is given.

An event is acknowledged after it was accepted; one that is sent again changes nothing.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from implicit_models import parameters as parameters_module
from implicit_models.tracking import registry
from implicit_models.tracking.spool import Event, Progress, Spool, locked
from implicit_models.tracking.stores import without_credentials

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_REJECTIONS = ("INVALID_PARAMETER_VALUE", "FEATURE_DISABLED", "ENDPOINT_NOT_FOUND")
# MLflow's own limits (mlflow.utils.validation).
_MAX_METRICS = 1000
_MAX_PARAMETERS = 100
_MAX_KEY = 250
_MAX_VALUE = 6000


class Delivery:
    """The sending of one spool.

    Parameters
    ----------
    client
        Of MLflow.
    entities
        MLflow's module of that name.
    spool, start, progress
        What is sent, its first event, and how far it was sent before.
    lock
        File to be locked where what two spools share is made: the entry's run, a model.
    """

    def __init__(
        self,
        client: Any,
        entities: Any,
        spool: Spool,
        start: Event,
        progress: Progress,
        lock: Path,
    ) -> None:
        self._client = client
        self._entities = entities
        self._spool = spool
        self._start = start
        self._progress = progress
        self._lock = lock

    @property
    def _experiment_id(self) -> str:
        assert self._progress.experiment_id is not None
        return self._progress.experiment_id

    @property
    def _run_ids(self) -> tuple[str, str]:
        """The stage's run and the entry's."""
        assert self._progress.run_id and self._progress.parent_run_id
        return self._progress.run_id, self._progress.parent_run_id

    def ensure_runs(self) -> None:
        """Find or create the entry's run and the stage's."""
        if self._progress.run_id:
            return
        experiment_id = self._experiment_id
        start, key = self._start, self._start["parent"] or self._spool.path.stem
        parent = _find_run(self._client, [experiment_id], {"tracking.parent": key})
        if parent is None and start["parent"] is None:
            parent = find_parent(self._client, [experiment_id], start["entry"], start["digest"])
        if parent is None:
            tags = start["tags"] | {"tracking.level": "entry", "tracking.parent": key}
            parent = self._create_run(start["entry"], tags)
        child = _find_run(self._client, [experiment_id], {"tracking.run": self._spool.path.stem})
        if child is None:
            tags = start["tags"] | start["stage_tags"]
            tags |= {"tracking.level": "stage", "tracking.run": self._spool.path.stem}
            tags |= {"mlflow.parentRunId": parent}
            child = self._create_run(start["stage"], tags)
        self._acknowledge(run_id=child, parent_run_id=parent)

    def send_events(self, seconds: float = math.inf) -> None:
        """Send the events that were not acknowledged yet: all, or for so much processor time."""
        deadline = time.process_time() + seconds
        stage_metrics: list[Any] = []
        entry_metrics: list[Any] = []

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
                if time.process_time() > deadline:
                    return
            level = event["level"] if values else None
            metrics = [
                self._entities.Metric(_key(name), value, event["time"], event["step"])
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
        elif kind == "dataset":
            self._log_dataset(event)
        elif kind == "model":
            self._register_model(event)
        elif kind == "score":
            self._score_model(event)
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
        # Stages may spell a value of the entry differently, 0 and 0.0: the first one counts.
        for run_id, values, level in (
            (self._progress.run_id, {**entry, **stage}, logging.WARNING),
            (self._progress.parent_run_id, entry, logging.DEBUG),
        ):
            params = [
                self._entities.Param(_key(name), _value(value)) for name, value in values.items()
            ]
            self._log(run_id, "params", params, _MAX_PARAMETERS, level)

    def _log_artifact(self, event: Event) -> None:
        copy = self._spool.artifact_folder / event["copy"]
        if not copy.exists():  # sent already, and not acknowledged
            return
        with self._skipping_what_is_rejected(f"{copy.name} as an artifact"):
            self._client.log_artifact(self._progress.run_id, str(copy), event["folder"])
        shutil.rmtree(copy.parent)

    def _log_dataset(self, event: Event) -> None:
        source = json.dumps({"uri": event["source"]})
        dataset = self._entities.Dataset(event["name"], event["digest"], "local", source)
        context = [self._entities.InputTag("mlflow.data.context", event["context"])]
        # MLflow keeps the first context of a data set, and the entry reads it for all purposes.
        for run_id, tags in zip(self._run_ids, (context, []), strict=True):
            with self._skipping_what_is_rejected(f"{event['name']} as a dataset"):
                self._client.log_inputs(run_id, [self._entities.DatasetInput(dataset, tags)])

    def _register_model(self, event: Event) -> None:
        """Make a version of the model, and rank it if the stage that tests it was sent before."""
        run_id, _ = self._run_ids
        start = self._start
        tags = start["tags"] | {"dvc.stage": start["stage_tags"]["dvc.stage"]}
        tags = {_key(key): _value(value) for key, value in tags.items()}
        with (
            self._skipping_what_is_rejected(f"{event['name']} as a model"),
            locked(self._lock),
        ):
            labels = {"score.model": event["name"], registry.DIGEST: event["digest"]}
            tested = _find_run(self._client, [self._experiment_id], labels)
            scored = self._client.get_run(tested).data.tags if tested else {}
            version = registry.register(self._client, event, run_id, tags, scored)
            self._tag_runs({"model": event["name"], "model.version": version})

    def _score_model(self, event: Event) -> None:
        """Write down what a model has reached, and rank it if it is registered by now."""
        tags = registry.score_tags(event)
        if not tags:
            return
        tags |= {"score.model": event["name"], registry.DIGEST: event["digest"]}
        with (
            self._skipping_what_is_rejected(f"the score of {event['name']}"),
            locked(self._lock),
        ):
            run_id, _ = self._run_ids
            for key, value in tags.items():
                self._client.set_tag(run_id, key, value)
            registry.score(self._client, event)

    def _tag_runs(self, tags: Mapping[str, str]) -> None:
        for run_id in self._run_ids:
            for key, value in tags.items():
                self._client.set_tag(run_id, key, value)

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

    def _create_run(self, name: str, tags: Mapping[str, str]) -> str:
        tags = {_key(key): _value(value) for key, value in tags.items()}
        start_time = self._start["time"]
        return self._client.create_run(self._experiment_id, start_time, tags, name).info.run_id

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
            _logger.log(level, "MLflow rejected %s: %s", what, reason(error))


def find_parent(client: Any, experiment_ids: Sequence[str], entry: str, digest: str) -> str | None:
    """Find the newest run of an entry."""
    labels = {"tracking.level": "entry", "entry": entry, "parameters.digest": digest}
    return _find_run(client, experiment_ids, labels)


def _find_run(client: Any, experiment_ids: Sequence[str], tags: Mapping[str, str]) -> str | None:
    conditions = (f"tags.`{_key(name)}` = '{value}'" for name, value in tags.items())
    runs = client.search_runs(
        list(experiment_ids),
        " and ".join(conditions),
        max_results=1,
        order_by=["attributes.start_time DESC"],
    )
    return runs[0].info.run_id if runs else None


def reason(error: BaseException) -> str:
    """Say in one line, without credentials, what went wrong."""
    lines = str(error).strip().splitlines() or [""]
    return without_credentials(f"{type(error).__name__}: {lines[0][:300]}")


def _is_rejection(error: Exception) -> bool:
    """Whether the store answered that it will never take this."""
    return getattr(error, "error_code", None) in _REJECTIONS


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
