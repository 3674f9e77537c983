"""The flow that a worker of Prefect runs on a node: one stage, for a flow elsewhere.

While it runs it says, in an artifact of its run, that the node is there; whoever waits for the run
sees by that whether it still is. It looks at its run's state as well: a run that was cancelled, or
that has been given up as lost, ends its stage.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled

from pipelines.cluster.assignment import Assignment, do_assignment
from pipelines.cluster.gpus import POD, node_name, offered_gpus
from pipelines.processes import in_background
from pipelines.running import (
    InfrastructureError,
    Log,
    StageFailedError,
    StoppedError,
    allow_all,
    pause,
    stop_all,
)
from pipelines.signals import handled_signals

CLONE = "IMPLICIT_MODELS_CLONE"  # this node's clone; the working directory where it is not set
HEARTBEAT, ANSWER = "heartbeat", "answer"  # types of artifacts

_SLOT_SECONDS = 60.0  # after which the slots of a node that died are free again
_LOOK_SECONDS = 2.0
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@flow(name="run-stage", flow_run_name="{stage}", persist_result=False, retries=0)
def run_stage(
    stage: str, assignment: dict[str, Any], heartbeat_seconds: float = 10.0
) -> State | None:
    """Run one stage in this node's clone.

    Parameters
    ----------
    stage
        Its name, for people.
    assignment
        What `Assignment.to_dict` gives.
    heartbeat_seconds
        How often the run says that the node is there.
    """
    logger = get_run_logger()
    run_id = UUID(str(flow_run.id))
    given = Assignment.from_dict(assignment)
    clone = Path(os.environ.get(CLONE, "."))
    allow_all()
    with get_client(sync_client=True) as client:
        if read_artifact(client, run_id, ANSWER) is not None:
            # Kubernetes may start a pod in the place of one that was evicted.
            return Cancelled(message="this run has had its answer before; nobody waits for it")
        try:
            with (
                # A training keeps a checkpoint when the worker or the cluster takes the node away.
                handled_signals(lambda number, frame: stop_all()),
                _heartbeat(run_id, heartbeat_seconds, logger.warning),
            ):
                slots = gpu_slots(client, given.place.gpus, logger.info)
                result = do_assignment(clone, given, logger.info, slots=slots)
        except (StageFailedError, InfrastructureError) as error:
            # By the state alone whoever waits could not tell whether to try again.
            is_own = isinstance(error, StageFailedError)
            answer = {"error": str(error), "is_stages_own": is_own, "node": node_name()}
            _leave(client, run_id, ANSWER, answer)
            raise
        except StoppedError as error:
            state = client.read_flow_run(run_id).state
            if state is not None and (state.is_cancelling() or state.is_final()):
                return Cancelled(message=str(error))
            message = (
                f"{node_name()} was asked to stop; what the stage has kept is in the remote, and "
                "the same command goes on from there"
            )
            answer = {"was_stopped": True, "error": message, "node": node_name()}
            _leave(client, run_id, ANSWER, answer)
            raise InfrastructureError(message) from error
        _leave(client, run_id, ANSWER, result.to_dict())
    return None


def read_artifact(client: SyncPrefectClient, run_id: UUID, kind: str) -> dict[str, Any] | None:
    """Read what a run has left; None where it has not."""
    runs = FlowRunFilter(id=FlowRunFilterId(any_=[run_id]))
    found = [each for each in client.read_artifacts(flow_run_filter=runs) if each.type == kind]
    # There may be several: a request whose answer was lost is sent again.
    newest = max(found, key=lambda each: each.updated or _LONG_AGO, default=None)
    return dict(newest.data) if newest and isinstance(newest.data, dict) else None


def _leave(client: SyncPrefectClient, run_id: UUID, kind: str, data: dict[str, Any]) -> UUID:
    artifact = ArtifactCreate(type=kind, flow_run_id=run_id, data=data)
    return client.create_artifact(artifact).id


def _heartbeat(run_id: UUID, seconds: float, warn: Log) -> AbstractContextManager[None]:
    """Signal that the node is there, and end the stage where nobody waits for it any more."""

    def beat(done: threading.Event) -> None:
        with get_client(sync_client=True) as client:
            artifact: UUID | None = None
            beats, told = 0, False
            while not (beats and done.wait(seconds)):
                beats += 1
                data = {"node": node_name(), "beats": beats}
                try:
                    if artifact is None:
                        artifact = _leave(client, run_id, HEARTBEAT, data)
                    client.update_artifact(artifact, ArtifactUpdate(data=data))
                    state = client.read_flow_run(run_id).state
                except Exception as error:  # the server may be back in a moment
                    if not told:
                        warn(f"Prefect's server does not answer ({error}); the stage goes on")
                        told = True
                    continue
                told = False
                if state is not None and (state.is_final() or state.is_cancelling()):
                    warn(f"this run is {state.name}: its stage is stopped")
                    stop_all()
                    return

    return in_background(beat, seconds)


@contextlib.contextmanager
def gpu_slots(client: SyncPrefectClient, count: int, log: Log) -> Iterator[None]:
    """Hold a slot of Prefect for each GPU, where one sees who has them and can take them away.

    The limit is named after the node. It is made where it is not there, and then left as it is: who
    lowers it takes GPUs out of service. A pod is no node: what it has Kubernetes has given to it.
    """
    if count == 0 or POD in os.environ:
        yield
        return
    name = f"gpus-{node_name()}"
    try:
        client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        client.upsert_global_concurrency_limit_by_name(name, len(offered_gpus()))
    with contextlib.ExitStack() as held:
        told = False
        while True:
            # Prefect's own waiting cannot be interrupted: a stage nobody wants would stay.
            slots = concurrency(
                name,
                occupy=count,
                max_retries=0,
                lease_duration=_SLOT_SECONDS,
                raise_on_lease_renewal_failure=False,
            )
            try:
                held.enter_context(slots)
                break
            except ConcurrencySlotAcquisitionError as error:
                if not told:
                    log(f"waiting for {count} slots of {name}: {error}")
                    told = True
                pause(_LOOK_SECONDS)
        yield
