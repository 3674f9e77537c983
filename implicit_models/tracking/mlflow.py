"""Runs in MLflow: one for each entry of ``runs`` or ``baselines``, its stages as children.

Metrics go to the stage's run and to the entry's, so that whole entries line up in a comparison,
training curves included. Nothing here imports MLflow before it has to talk to it, and nothing
elsewhere imports it at all.
"""

import contextlib
import dataclasses
import logging
import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from implicit_models.tracking.delivery import Delivery, find_entry, reason
from implicit_models.tracking.spool import (
    FOLDER,
    Event,
    SentState,
    Spool,
    locked,
    newest_first,
    open_spools,
)
from implicit_models.tracking.stores import (
    address_of,
    artifact_location,
    bounded_database,
    default_database,
    destination_now,
    is_of_environment,
    no_credentials,
)

_logger = logging.getLogger(__name__)

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
# With it MLflow's pages are those of a training of models, and not of an application's traces.
_KIND = {"mlflow.experimentKind": "custom_model_development"}
_SENDING_SECONDS = 20.0  # of another process, for a stage that needs all to be sent
_POLL_SECONDS = 0.05
_MAX_EXPERIMENTS = 1000


def parent_run_id(entry: str, digest: str, root: Path = Path(".")) -> str | None:
    """Return the id of the newest MLflow run of an entry with a digest of parameters.

    None where it has not been sent yet, does not exist or cannot be reached. What was sent from
    `root` is known without asking MLflow.
    """
    runs = list(newest_first(root, entry=entry, digest=digest))
    if runs:
        newest = runs[0][1]["parent"]
        ids = (spool.read_sent().parent_run_id for spool, s in runs if s["parent"] == newest)
        return next(filter(None, ids), None)
    destination = destination_now(root)
    if destination is None and not default_database(root).exists():
        return None
    try:
        with _environment():
            client = connect(address_of(destination, root))
            experiments = client.search_experiments(max_results=_MAX_EXPERIMENTS)
            found = find_entry(client, [each.experiment_id for each in experiments], entry, digest)
            return found and found.info.run_id
    except Exception as error:
        _logger.info("cannot look up the run of %s: %s", entry, reason(error))
        return None


def tag_entries(
    tags: Mapping[tuple[str, str], Mapping[str, str]], root: Path = Path(".")
) -> str | None:
    """Set tags of the newest runs of entries, wherever they were trained.

    Parameters
    ----------
    tags
        For each entry and digest of its parameters. Entries without a run are passed over.

    Returns
    -------
    str or None
        Why the store could not be asked, in one line.
    """
    try:
        with _environment():
            client = connect(address_of(destination_now(root), root))
            found = client.search_experiments(max_results=_MAX_EXPERIMENTS)
            experiments = [each.experiment_id for each in found]
            for (entry, digest), values in tags.items():
                run = find_entry(client, experiments, entry, digest) if experiments else None
                if run is not None:
                    for name, value in values.items():
                        client.set_tag(run.info.run_id, name, value)
    except Exception as error:
        return reason(error)
    return None


def deliver(root: Path = Path("."), patience: float = 5.0) -> None:
    """Wait until everything that stages have recorded is sent, and warn of what cannot be.

    What a courier has not sent after `patience` seconds is sent from here. One that is sending, and
    gets no processor since all are busy, is not waited for without end.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(
        _has_news(spool, _store_of(spool, start))
        for spool in open_spools(root)
        if (start := spool.start()) and not spool.is_being_written()
    ):
        time.sleep(_POLL_SECONDS)
    problems = Sender(root).send(open_spools(root), patience=_SENDING_SECONDS)
    for problem, count in Counter(problems.values()).items():
        _logger.warning(
            "tracking: %d runs could not be sent to MLflow: %s (they are kept; once it answers: "
            "python -m implicit_models.tracking.sync)",
            count,
            problem,
        )


def connect(address: str) -> Any:
    """Connect to a tracking store; MLflow is imported here and below, and nowhere else.

    Raises
    ------
    OSError
        At once, where nobody listens at the address of a database: MLflow would try for minutes.
    """
    bounded = bounded_database(address)
    from mlflow import MlflowClient

    if bounded is not None:
        from mlflow.store.db import utils

        utils.MAX_RETRY_COUNT = 0  # who sends tries again
    return MlflowClient(bounded or address)


def _entities() -> Any:
    from mlflow import entities

    return entities


class Sender:
    """Sends spools to MLflow.

    Any number of senders may work on one repository: they take turns, spool by spool. An event is
    acknowledged after it was accepted. Whoever dies in between sends it again, with its original
    time, and MLflow keeps one row for equal (run, name, time, step, value).

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
        self._unreachable: dict[str | None, str] = {}

    def send(
        self,
        spools: Sequence[Spool],
        live_seconds: float = math.inf,
        patience: float = math.inf,
    ) -> dict[Spool, str]:
        """Send what is new in the spools; return of each that could not be sent why.

        Never raises because of a store. One that does not answer is asked once for all spools.

        Parameters
        ----------
        spools
            To be sent.
        live_seconds
            Of processor time, after which the rest of a spool that is being written is left for
            the next time.
        patience
            Seconds to wait for another process that sends.
        """
        problems: dict[Spool, str] = {}
        lock = self._root / FOLDER / "sending.lock"
        self._unreachable.clear()
        with _environment():
            for spool in spools:
                start = spool.start()
                if start is None:
                    with locked(lock, patience) as is_free:
                        if is_free:
                            spool.set_aside_if_lost()
                    continue
                destination = self._destination or _store_of(spool, start)
                if not _has_news(spool, destination):
                    continue
                with locked(lock, patience) as is_free:
                    if not is_free:
                        problems[spool] = "another process is sending, and takes long"
                        patience = 0.0
                    if not is_free or not spool.path.exists():  # sent by it while we waited
                        continue
                    with self._credentials(destination):
                        problem = self._send(spool, start, destination, live_seconds)
                    if problem is not None:
                        problems[spool] = problem
                        sent = dataclasses.replace(spool.read_sent(), problem=problem)
                        with contextlib.suppress(OSError):
                            spool.write_sent(sent)
        return problems

    def _credentials(self, destination: str | None) -> contextlib.AbstractContextManager[None]:
        """Keep them from a store that a spool names, and nobody here."""
        named = destination == self._destination or is_of_environment(destination, self._root)
        return contextlib.nullcontext() if named else no_credentials()

    def _send(
        self, spool: Spool, start: Event, destination: str | None, live_seconds: float
    ) -> str | None:
        """Send one spool; return why that failed."""
        if destination in self._unreachable:
            return self._unreachable[destination]
        try:
            client, experiment_id = self._experiment(start, destination)
        except Exception as error:
            self._unreachable[destination] = reason(error)
            return reason(error)
        is_alive = spool.is_being_written()
        sent = spool.read_sent()
        if sent.destination != destination:
            sent = SentState(destination=destination, moved_to=self._destination)
        sent = dataclasses.replace(sent, experiment_id=experiment_id, problem=None)
        delivery = Delivery(client, _entities(), spool, start, sent)
        try:
            delivery.ensure_runs()
            delivery.send_events(live_seconds if is_alive else math.inf)
            if not is_alive:
                delivery.conclude()
        except Exception as error:
            if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
                with contextlib.suppress(OSError):
                    # It was deleted: begin anew next time.
                    spool.write_sent(SentState(moved_to=sent.moved_to))
            return reason(error)
        return None

    def _experiment(self, start: Event, destination: str | None) -> tuple[Any, str]:
        """Return the client and the experiment's id: the first exchange with the store."""
        address = address_of(destination, self._root)
        client = self._clients.get(address) or self._connect(address)
        experiment = client.get_experiment_by_name(start["experiment"])
        self._clients[address] = client
        if experiment is not None:
            return client, experiment.experiment_id
        location = artifact_location(address, self._root)
        return client, client.create_experiment(start["experiment"], location, _KIND)


def _store_of(spool: Spool, start: Event) -> str | None:
    return spool.read_sent().moved_to or start["destination"]


def _has_news(spool: Spool, destination: str | None) -> bool:
    sent = spool.read_sent()
    is_new = not sent.run_id or sent.destination != destination
    is_due = sent.status in ("RUNNING", "FINISHED") and not spool.is_being_written()
    return is_new or is_due or spool.size() > sent.offset


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Bound MLflow's requests where the environment does not, and keep its warnings to itself."""
    added = [name for name in _ENVIRONMENT if name not in os.environ]
    os.environ.update({name: _ENVIRONMENT[name] for name in added})
    requests = logging.getLogger("urllib3.connectionpool")
    level = requests.level
    requests.setLevel(logging.ERROR)  # what it retries is told when it is given up
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        requests.setLevel(level)
        for name in added:
            os.environ.pop(name, None)
