"""Assignments to nodes: how they are sent, and what a node does with one, whoever sent it."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from implicit_models.tracking.links import tracked_run
from implicit_models.tracking.stores import stores_of
from pipelines.cluster.checkpoint_sync import CheckpointSync
from pipelines.cluster.exchange import Request, make_request, publish, receive, take_inputs
from pipelines.cluster.gpus import held_gpus, node_name
from pipelines.cluster.local_gpus import stage_environment
from pipelines.cluster.node_workspace import workspace
from pipelines.cluster.placement import Place, Pool
from pipelines.cluster.remote import faults, in_words, outputs_of
from pipelines.dag import Stage
from pipelines.running import (
    InfrastructureError,
    LocalRunner,
    Log,
    Outcome,
    StageFailedError,
    stage_lock,
    stopping,
)

_SENDING_SECONDS = 120.0
_HURRIED_SECONDS = 20.0  # after a fault, and before a pod or a node is taken away
_SEND = ("-m", "implicit_models.tracking.sync")
_BUSY = "another process trains with the checkpoints in"  # of stages/training/exclusive.py


@dataclass(frozen=True)
class Assignment:
    """A stage for a node, and what it gets there.

    Attributes
    ----------
    request
        The stage and all that its result depends on.
    place
        GPUs and environment.
    checkpoint_seconds
        How often checkpoints are copied into the remote.
    """

    request: Request
    place: Place
    checkpoint_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {**vars(self), "request": self.request.to_dict(), "place": dict(self.place)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Assignment":
        """Return what `to_dict` has made a mapping of."""
        request, place = Request.from_dict(content["request"]), Place(**content["place"])
        return cls(request, place, content["checkpoint_seconds"])


@dataclass(frozen=True)
class Result:
    """What a node sends back.

    Attributes
    ----------
    entry
        The stage's entry of dvc.lock; the outputs that it names are in the remote.
    outcome
        What came of the stage there.
    """

    entry: Mapping[str, Any]
    outcome: Outcome

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {"entry": dict(self.entry), "outcome": asdict(self.outcome)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Result":
        """Return what `to_dict` has made a mapping of."""
        return cls(content["entry"], Outcome(**content["outcome"]))


@dataclass(frozen=True)
class Dispatcher:
    """Has stages run in a pool.

    Attributes
    ----------
    root
        The repository, which gets the results.
    name, pool
        Of the pool in placement.yaml.
    place
        What the stage gets on its nodes.
    """

    root: Path
    name: str
    pool: Pool
    place: Place

    def dispatch(
        self, stage: Stage, log: Log, run: Callable[[Assignment], Result | None]
    ) -> Outcome:
        """Send the stage's inputs, have a node run it, and take what comes of it.

        One flow of the repository at a time: a second one finds it done.

        Parameters
        ----------
        run
            Gives it to the pool, and returns None where the nodes were taken away before it was
            done; it is then called again.
        """
        start = time.monotonic()
        with stage_lock(self.root, stage.name, log):
            request = make_request(self.root, stage.name, self.pool.remote)
            assignment = Assignment(request, self.place, self.pool.checkpoint_seconds)
            for attempt in range(self.pool.max_requeues + 1):
                if attempt:
                    log(f"{stage.name} lost its nodes; others go on from there")
                result = run(assignment)
                if result is not None:
                    break
            else:
                more = ("slurm.time", "max_requeues")[self.pool.kind != "slurm" :]
                # Not to be tried again: that would give it out as often once more.
                raise StageFailedError(
                    f"stage {stage.name}: its nodes were taken away {self.pool.max_requeues + 1} "
                    "times; the same command goes on from the last checkpoint, and placement.yaml "
                    f"gives more ({', '.join(f'pools.{self.name}.{key}' for key in more)})"
                )
            receive(self.root, stage.name, result.entry, self.pool.remote)
        return replace(result.outcome, seconds=time.monotonic() - start)


def do_assignment(
    clone: Path,
    assignment: Assignment,
    log: Log,
    environment: Mapping[str, str] | None = None,
    slots: AbstractContextManager[Any] | None = None,
) -> Result:
    """Run a request's stage on this machine.

    Parameters
    ----------
    clone
        This machine's clone of the repository.
    environment
        Of the stage, on top of what its place gives.
    slots
        Held from when the GPUs are there until the stage has ended.

    Raises
    ------
    StageFailedError, InfrastructureError, StoppedError
        As runners do.
    """
    start, request = time.monotonic(), assignment.request
    stage = Stage(request.stage)
    with (
        _tracked_is_sent(clone, log) as variables,
        workspace(clone, request, log) as root,
    ):
        take_inputs(root, request)
        log(f"{node_name()} has the inputs of {request.stage} at commit {request.commit[:10]}")
        with (
            contextlib.closing(CheckpointSync(root, stage.entry, request.remote)) as checkpoints,
            held_gpus(assignment.place.gpus, log) as gpus,
            slots or contextlib.nullcontext(),
        ):
            with faults("the checkpoints of", request.stage):
                fetched = checkpoints.fetch()
            for name in fetched:
                log(f"{name} was fetched from the remote")
            if gpus.names:
                log(f"{request.stage} has the GPUs {', '.join(gpus.names)} of {node_name()}")
            variables.update(stage_environment(assignment.place, gpus.names), **(environment or {}))
            # The workspace passes: a store that is a relative path is the clone's.
            variables.update(stores_of(clone, {**os.environ, **variables}))
            run = LocalRunner(root, variables, gpus.locks)
            with (
                checkpoints.copying(assignment.checkpoint_seconds, log),
                _tried_again_where_busy(request.stage, log) as tell,
            ):
                outcome = run(stage, tell)
            entry = publish(root, request)
            checkpoints.discard(outputs_of(entry).values(), log)
    tracked = tracked_run(clone, request.stage)
    seconds = time.monotonic() - start
    page = (tracked.address or tracked.run_id) if tracked else None
    return Result(entry, Outcome(outcome.how, seconds, node_name(), tracked=page))


@contextlib.contextmanager
def _tried_again_where_busy(name: str, log: Log) -> Iterator[Log]:
    """Turn a stage's error into one to try again where another flow trains its entry on this node.

    Yields
    ------
    callable
        The log for the stage, by whose lines that is known: workspaces share checkpoints.
    """
    is_busy = False

    def tell(line: str) -> None:
        nonlocal is_busy
        is_busy = is_busy or _BUSY in line
        log(line)

    try:
        yield tell
    except StageFailedError as error:
        if not is_busy:
            raise
        raise InfrastructureError(
            f"stage {name}: {node_name()} is at another training of this entry, for another flow, "
            "and does one at a time; the stage is tried again, and where that takes longer, the "
            "same command does it later"
        ) from error


@contextlib.contextmanager
def _tracked_is_sent(clone: Path, log: Log) -> Iterator[dict[str, str]]:
    """Send what a stage has tracked when a block has ended, however it ends.

    Yields
    ------
    dict
        To be filled with the stage's environment; where it stays empty, no stage has begun.
    """
    variables: dict[str, str] = {}
    seconds = _HURRIED_SECONDS
    try:
        yield variables
        seconds = _SENDING_SECONDS
    finally:
        if variables:
            _send_tracked(clone, variables, log, _HURRIED_SECONDS if stopping() else seconds)


def _send_tracked(clone: Path, variables: Mapping[str, str], log: Log, seconds: float) -> None:
    """Send what the stage has tracked: who did that in the background was in the workspace.

    Never raises: what the stage has come to counts, and what is not sent is kept.
    """
    try:
        if not any((clone / ".tracking").iterdir()):
            return
        done = subprocess.run(
            [sys.executable, *_SEND],
            cwd=clone,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
        if done.returncode:
            log(f"what is tracked could not be sent yet: {done.stderr.strip()[-500:]}")
    except subprocess.TimeoutExpired:
        log(f"not all that is tracked is sent after {seconds:.0f} s; it is kept")
    except Exception as error:
        log(f"what is tracked could not be sent yet: {in_words(error)}")
