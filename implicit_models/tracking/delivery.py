"""The sending of one spool, event by event, to a client of MLflow that it is given.

An event is acknowledged after it was accepted; one that is sent again changes nothing.
"""

import contextlib
import dataclasses
import json
import logging
import math
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from implicit_models.tracking import logged_models, registry
from implicit_models.tracking.limits import MAX_ITEMS, accepted, accepted_key, is_rejection
from implicit_models.tracking.names import TRAINING_SECONDS
from implicit_models.tracking.spool import Event, SentState, Spool
from implicit_models.tracking.stores import without_credentials

_logger = logging.getLogger(__name__)


class Delivery:
    """The sending of one spool.

    Parameters
    ----------
    client
        Of MLflow.
    entities
        MLflow's module of that name.
    spool, start, sent
        What is sent, its first event, and how far it was sent before.
    """

    def __init__(
        self, client: Any, entities: Any, spool: Spool, start: Event, sent: SentState
    ) -> None:
        self._client = client
        self._entities = entities
        self._spool = spool
        self._start = start
        self._sent = sent

    @property
    def _run_ids(self) -> tuple[str, str]:
        """The stage's run and the entry's."""
        assert self._sent.run_id and self._sent.parent_run_id
        return self._sent.run_id, self._sent.parent_run_id

    def ensure_runs(self) -> None:
        """Find or create the entry's run and the stage's."""
        if self._sent.run_id:
            return
        start, own_key = self._start, self._spool.path.stem
        key = start["parent"] or own_key
        parent = self._find_run({"tracking.parent": key})
        is_first = start["parent"] is None
        if parent is None and start["parent"] is None:
            experiments = [self._sent.experiment_id]
            parent = find_entry(self._client, experiments, start["entry"], start["digest"])
            is_first = parent is None
        if parent is None:
            parent = self._create_run(
                start["entry"], {"tracking.level": "entry", "tracking.parent": key}
            )
        child = self._find_run({"tracking.run": own_key})
        if child is None:
            tags = {"stage": start["stage"], "dvc.stage": start["dvc_stage"]}
            tags |= {"tracking.level": "stage", "tracking.run": own_key}
            tags |= {"mlflow.parentRunId": parent.info.run_id}
            child = self._create_run(start["stage"], tags)
        self._acknowledge(
            run_id=child.info.run_id,
            parent_run_id=parent.info.run_id,
            is_first_of_entry=is_first,
        )

    def send_events(self, seconds: float = math.inf) -> None:
        """Send the events that were not acknowledged yet: all, or for so much processor time."""
        deadline = time.process_time() + seconds
        limit = MAX_ITEMS["metrics"]
        metrics: dict[str, list[Any]] = {run_id: [] for run_id in self._run_ids}
        end = self._sent.offset

        def send_metrics() -> None:
            for run_id, waiting in metrics.items():
                self._log(run_id, "metrics", waiting)
                waiting.clear()
            self._acknowledge(offset=end)

        for event, next_end in self._spool.events(end):
            values = event["values"] if event["event"] == "metrics" else {}
            num_waiting = max(map(len, metrics.values()))
            if num_waiting and (not values or num_waiting + len(values) > limit):
                send_metrics()
                if time.process_time() > deadline:
                    return
            for run_id in self._receivers(event["level"]) if values else ():
                metrics[run_id] += [
                    self._entities.Metric(accepted_key(name), value, event["time"], event["step"])
                    for name, value in values.items()
                ]
            end = next_end
            if not values:
                with self._skipping_what_is_rejected(event):
                    self._apply(event)
                self._acknowledge(offset=end)
        send_metrics()

    def conclude(self) -> None:
        """Note the death of a writer that left no end; set a finished spool aside."""
        if self._sent.status == "FINISHED":
            self._spool.retire()
        elif self._sent.status == "RUNNING":
            self._set_status("KILLED")
            self._acknowledge()

    def _receivers(self, level: str) -> Sequence[str]:
        """Return the runs that metrics of a level belong to."""
        stage, entry = self._run_ids
        if level == "new entry":
            return [entry] if self._sent.is_first_of_entry else []
        return {"stage": [stage], "entry": [entry], "both": [stage, entry]}[level]

    def _apply(self, event: Event) -> None:
        kind = event["event"]
        if kind == "start":
            self._sent = dataclasses.replace(self._sent, status="RUNNING")
            self._log_parameters(event["parameters"], event["stage_parameters"])
        elif kind == "resume":
            self._set_status("RUNNING")
        elif kind == "artifact":
            self._log_artifact(event)
        elif kind == "dataset":
            self._log_dataset(event)
        elif kind == "logged_model":
            self._log_model(event)
        elif kind == "score":
            self._score_model(event)
        elif kind == "end":
            self._set_status(event["status"], event["time"])
        else:
            _logger.warning("%s: %r, of another version, is left out", self._spool.path, kind)

    def _log_parameters(self, entry: Mapping[str, str], stage: Mapping[str, str]) -> None:
        stage_run, entry_run = self._run_ids
        # Stages may spell a value of the entry differently, 0 and 0.0: the first one counts.
        for run_id, values, level in (
            (stage_run, {**entry, **stage}, logging.WARNING),
            (entry_run, entry, logging.DEBUG),
        ):
            params = [self._entities.Param(key, value) for key, value in accepted(values).items()]
            self._log(run_id, "params", params, level)

    def _log_artifact(self, event: Event) -> None:
        if (copy := self._copy_of(event["copy"])) is not None:
            self._client.log_artifact(self._sent.run_id, str(copy), event["folder"])
            shutil.rmtree(copy.parent)

    def _copy_of(self, name: str) -> Path | None:
        """Return the copy of what is sent; None where it is none, or was sent already."""
        try:
            copy = self._spool.copy_of(name)
        except ValueError as error:  # whoever has written it, nothing else is sent, or removed
            _logger.warning("%s: an artifact is left out: %s", self._spool.path, error)
            return None
        return copy if copy.exists() else None

    def _log_dataset(self, event: Event) -> None:
        source = json.dumps({"uri": event["source"]})
        dataset = self._entities.Dataset(event["name"], event["digest"], "local", source)
        context = [self._entities.InputTag("mlflow.data.context", event["context"])]
        # MLflow keeps the first context of a data set, and the entry reads it for all purposes.
        for run_id, tags in zip(self._run_ids, (context, []), strict=True):
            self._client.log_inputs(run_id, [self._entities.DatasetInput(dataset, tags)])

    def _log_model(self, event: Event) -> None:
        """Log a phase's model; a final one becomes a version of a registered one."""
        run_id, registered, digest = self._run_ids[0], event["registered"], event["digest"]
        copy = self._copy_of(event["copy"]) if event["copy"] else None
        tags = {"phase": event["phase"], "path": event["path"], registry.DIGEST: digest}
        tags = accepted(self._start["tags"] | tags)
        # In MLflow's names of models a few characters mean something.
        name = re.sub(r"[^\w -]", "_", f"{self._start['entry']} {event['phase']}")
        try:
            model = logged_models.log_model(
                self._client,
                self._entities,
                (str(self._sent.experiment_id), run_id),
                name,
                copy,
                tags,
                f"{self._spool.path.stem} {event['phase']}",
                event["step"],
            )
            place = (model.artifact_location, run_id, model.model_id)
        except Exception as error:  # a server that was made before there were any
            if not is_rejection(error):
                raise
            if copy is not None:
                self._client.log_artifact(run_id, str(copy), "checkpoint")
            folder = f"checkpoint/{Path(event['path']).name}"
            place = (f"{self._artifacts()}/{folder}", run_id, None)
        if registered is not None:
            version = self._register_model(registered, digest, place)
            if place[2] is not None:
                # MLflow's servers set it; a database that is asked directly does not.
                is_version = json.dumps([{"name": registered, "version": version}])
                self._client.set_logged_model_tags(place[2], {"mlflow.modelVersions": is_version})
        if copy is not None:
            shutil.rmtree(copy.parent)

    def _artifacts(self) -> str:
        """Return where the artifacts of the stage's run are."""
        return self._client.get_run(self._sent.run_id).info.artifact_uri.rstrip("/")

    def _register_model(self, name: str, digest: str, place: tuple[str, str, str | None]) -> str:
        tags = accepted(self._start["tags"] | {"dvc.stage": self._start["dvc_stage"]})
        version = registry.register(self._client, name, digest, place, tags)
        for run_id in self._run_ids:
            self._tag(run_id, {"model": name, "model.version": version})
        self._rank_model({"name": name, "digest": digest})
        return version

    def _score_model(self, event: Event) -> None:
        if tags := registry.score_tags(event):
            self._tag(self._run_ids[0], tags | _tags_of_tested(event))
            self._rank_model(event)

    def _rank_model(self, event: Event) -> None:
        """Rank a model, once both its training and a test of it were sent, in any order."""
        tested = self._find_run(_tags_of_tested(event))
        if tested is not None:
            registry.rank(self._client, event["name"], event["digest"], tested.data.tags)
            logged_models.link_test(self._client, self._entities, event["digest"], tested)

    def _tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            self._client.set_tag(run_id, key, value)

    def _set_status(self, status: str, end_time: int | None = None) -> None:
        stage, entry = self._run_ids
        if status == "RUNNING":
            for run_id in (stage, entry):
                self._client.update_run(run_id, status=status)
        else:
            self._client.set_terminated(stage, status, end_time)
            if status == "FINISHED":
                end_time = self._end_of_training() or end_time
            self._client.set_terminated(entry, status, end_time)
        self._sent = dataclasses.replace(self._sent, status=status)

    def _end_of_training(self) -> int | None:
        """Return when the entry's run has ended, were its trainings all that there is in it.

        Their stages may lie hours apart, and a test years: the duration of an entry's run is what
        its trainings took, whichever of its stages is sent last.
        """
        entry = self._client.get_run(self._run_ids[1])
        seconds = entry.data.metrics.get(TRAINING_SECONDS)
        return None if seconds is None else round(entry.info.start_time + 1000 * seconds)

    def _log(
        self, run_id: str, kind: str, items: Sequence[Any], level: int = logging.WARNING
    ) -> None:
        """Log at once; what is rejected is narrowed down to its culprits, and only they are left.

        Everything else would wait behind them forever.
        """
        limit = MAX_ITEMS[kind]
        if len(items) > limit:
            for start in range(0, len(items), limit):
                self._log(run_id, kind, items[start : start + limit], level)
        elif items:
            try:
                self._client.log_batch(run_id, **{kind: items})
            except Exception as error:
                if not is_rejection(error):
                    raise
                if len(items) == 1:
                    _logger.log(level, "MLflow rejected %s: %s", items[0].key, reason(error))
                    return
                for part in (items[: len(items) // 2], items[len(items) // 2 :]):
                    self._log(run_id, kind, part, level)

    def _find_run(self, tags: Mapping[str, str]) -> Any | None:
        return _newest_run(self._client, [self._sent.experiment_id], tags)

    def _create_run(self, name: str, tags: Mapping[str, str]) -> Any:
        tags, start_time = accepted(self._start["tags"] | tags), self._start["time"]
        return self._client.create_run(self._sent.experiment_id, start_time, tags, name)

    def _acknowledge(self, **changes: Any) -> None:
        self._sent = dataclasses.replace(self._sent, **changes)
        self._spool.write_sent(self._sent)

    @contextlib.contextmanager
    def _skipping_what_is_rejected(self, event: Event) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not is_rejection(error):
                raise
            known = (event.get(name) for name in ("name", "registered", "copy"))
            what = next(filter(None, known), self._start["stage"])
            kind = event["event"].replace("_", " ")
            _logger.warning("MLflow rejected the %s %s: %s", kind, what, reason(error))


def find_entry(client: Any, experiment_ids: Sequence[Any], entry: str, digest: str) -> Any | None:
    """Return the newest run of an entry."""
    labels = {"tracking.level": "entry", "entry": entry, "parameters.digest": digest}
    return _newest_run(client, experiment_ids, labels)


def _newest_run(client: Any, experiment_ids: Sequence[Any], tags: Mapping[str, str]) -> Any | None:
    conditions = (f"tags.`{accepted_key(name)}` = '{value}'" for name, value in tags.items())
    order = ["attributes.start_time DESC"]
    runs = client.search_runs(list(experiment_ids), " and ".join(conditions), 1, 1, order)
    return runs[0] if runs else None


def _tags_of_tested(event: Event) -> dict[str, str]:
    """Return the tags of a run that has tested a registered model."""
    return {"score.model": event["name"], registry.DIGEST: event["digest"]}


def reason(error: BaseException) -> str:
    """Return in one line, without credentials, what went wrong."""
    lines = str(error).strip().splitlines() or [""]
    return without_credentials(f"{type(error).__name__}: {lines[0][:300]}")
