"""Stages in a work pool of Prefect: each is a run of the pool's deployment, watched from here."""

import contextlib
import logging
import time
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId, LogFilterLevel
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.sorting import LogSort
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelled, Cancelling, Crashed

from pipelines.cluster.assignment import Assignment, Dispatcher, Result
from pipelines.cluster.on_node import ANSWER, HEARTBEAT, read_artifact
from pipelines.cluster.placement import Pool
from pipelines.cluster.submissions import Submission
from pipelines.dag import Stage
from pipelines.running import (
    InfrastructureError,
    Log,
    Outcome,
    StageFailedError,
    is_overdue,
    pause,
)

T = TypeVar("T")

_SERVER_PATIENCE = 600.0  # seconds that Prefect's server may be away
_CANCELLING_PATIENCE = 60.0
_TELL_SECONDS = 60.0
_NO_ANSWER = (ObjectNotFound, httpx.HTTPError, PrefectHTTPStatusError)


class PoolRunner(Dispatcher):
    """Runs stages on the nodes of a work pool."""

    def __call__(self, stage: Stage, log: Log) -> Outcome:
        """Run the stage on a node.

        A node that goes silent is given up: its run becomes Crashed, and the stage may be tried
        again.
        """
        return self.dispatch(stage, log, lambda assignment: self._run(stage, assignment, log))

    def _run(self, stage: Stage, assignment: Assignment, log: Log) -> Result | None:
        with get_client(sync_client=True) as client:
            submission = Submission.of(self.root, self.name, self.pool, assignment)
            run_id = _left_by_another_flow(client, submission, log)
            if run_id is None:
                run_id = self._submit(stage, assignment).id
                end = f"prefect flow-run cancel {run_id}"
                submission.note(str(run_id), f"the flow run {run_id}", end)
            log(f"{stage.name} waits for a worker of {self.name} (flow run {run_id})")
            watch = _Watch(client, run_id, self.pool, log)
            try:
                state = watch.until_final()
                result = self._answer(client, run_id, stage, state, log)
            except BaseException:
                watch.cancel()
                raise
            finally:
                if _is_over(client, run_id):
                    submission.forget()
        if result is None:
            return None
        log(f"{stage.name} has run on {result.outcome.place}")
        if result.outcome.tracked:
            log(f"its run in MLflow: {result.outcome.tracked}")
        return result

    def _submit(self, stage: Stage, assignment: Assignment) -> FlowRun:
        deployment = self.pool.deployment or f"run-stage/{self.name}"
        try:
            return run_deployment(  # type: ignore[return-value]
                deployment,
                parameters={
                    "stage": stage.name,
                    "assignment": assignment.to_dict(),
                    "heartbeat_seconds": self.pool.heartbeat_seconds,
                },
                timeout=0,
                tags=[stage.kind],
            )
        except ObjectNotFound:
            raise StageFailedError(
                f"stage {stage.name}: Prefect has no deployment {deployment}; make it: "
                f"`python -m pipelines.deploy {self.name}` (docs/cluster.md), or name another in "
                f"placement.yaml as pools.{self.name}.deployment"
            ) from None
        except (httpx.HTTPError, PrefectHTTPStatusError) as error:
            raise InfrastructureError(f"Prefect has not taken {stage.name}: {error}") from error

    def _answer(
        self, client: SyncPrefectClient, run_id: UUID, stage: Stage, state: State, log: Log
    ) -> Result | None:
        answer = _patiently(lambda: read_artifact(client, run_id, ANSWER), lambda text: None)
        if state.is_completed() and answer is not None:
            return Result.from_dict(answer)
        told = (answer or {}).get("error") or state.message or "it says nothing more"
        node = (answer or {}).get("node") or self.name
        message = f"stage {stage.name} on {node}: its run {run_id} is {state.name}: {told}"
        if (answer or {}).get("was_stopped"):
            log(message)
            return None
        if (answer or {}).get("is_stages_own") or (state.is_cancelled() and answer is None):
            raise StageFailedError(message)
        raise InfrastructureError(message)


def _left_by_another_flow(
    client: SyncPrefectClient, submission: Submission, log: Log
) -> UUID | None:
    """Return the run of a flow that was killed, if it waits or runs on, or has a result."""
    number = submission.number(log)
    if number is None:
        return None
    run_id = UUID(number)
    with contextlib.suppress(*_NO_ANSWER):
        state = client.read_flow_run(run_id).state
        if state is not None and (state.is_completed() or not _has_ended(state)):
            log(f"a flow that was killed has left the flow run {run_id}, which is waited for")
            return run_id
    return None


def _is_over(client: SyncPrefectClient, run_id: UUID) -> bool:
    """Return whether a run has ended or ends; False where Prefect's server does not say so."""
    with contextlib.suppress(*_NO_ANSWER):
        state = client.read_flow_run(run_id).state
        return state is not None and _has_ended(state)
    return False


def _has_ended(state: State) -> bool:
    return state.is_final() or state.is_cancelling()


class _Watch:
    """Waits for a run to end, as long as its node is there."""

    def __init__(self, client: SyncPrefectClient, run_id: UUID, pool: Pool, log: Log) -> None:
        self._client = client
        self._run_id = run_id
        self._pool = pool
        self._log = log

    def until_final(self) -> State:
        """Wait for the run's final state.

        Raises
        ------
        InfrastructureError
            Where the node is lost; the run is then Crashed.
        """
        last_beat: object = None
        since = told = time.monotonic()
        node = None
        while True:
            before = time.monotonic()
            state, beat = _patiently(self._look, self._log)
            now = time.monotonic()
            if now - before > self._pool.heartbeat_seconds:
                since = now  # the server was away: the node could not have told it anything
            if state.is_final():
                return state
            if beat is not None and node is None:
                node = beat["node"]
                self._log(f"it runs on {node}")
            if beat != last_beat or state.is_scheduled():
                last_beat, since = beat, now
            if state.is_scheduled() and now - told > _TELL_SECONDS:
                told = now
                self._log("no worker has taken it yet; see: prefect work-pool inspect")
            if state.is_pending() and not beat and now - told > _TELL_SECONDS:
                told = now
                self._log(f"it has not begun yet{_patiently(self._complaint, self._log)}")
            allowed = self._pool.lost_after_seconds if beat else self._pool.start_within_seconds
            if now - since > allowed:
                what = f"{node} has said nothing" if node else "the run has not begun"
                message = f"{what} for {now - since:.0f} s: it counts as lost"
                if not node:
                    message += _patiently(self._complaint, self._log)
                self._set(Crashed(message=message))
                raise InfrastructureError(f"flow run {self._run_id}: {message}")
            pause(min(self._pool.heartbeat_seconds, 5.0))

    def cancel(self) -> None:
        """Make the node stop the stage, which keeps a checkpoint, and wait for that a while.

        Not once the patience of `stop_all` is over: the node ends the stage by itself.
        """
        with contextlib.suppress(httpx.HTTPError, PrefectHTTPStatusError):
            state, beat = self._look()
            if state.is_final():
                return
            self._set(Cancelling() if beat else Cancelled())
            deadline = time.monotonic() + _CANCELLING_PATIENCE
            while time.monotonic() < deadline and not (is_overdue() or self._look()[0].is_final()):
                time.sleep(1.0)

    def _complaint(self) -> str:
        """Return the worker's last complaint: an image that is not there, no free GPU."""
        run = LogFilterFlowRunId(any_=[self._run_id])
        wanted = LogFilter(flow_run_id=run, level=LogFilterLevel(ge_=logging.WARNING))
        found = self._client.read_logs(wanted, limit=1, sort=LogSort.TIMESTAMP_DESC)
        return f": {found[0].message}" if found else ""

    def _look(self) -> tuple[State, dict | None]:
        state = self._client.read_flow_run(self._run_id).state
        assert state is not None
        return state, read_artifact(self._client, self._run_id, HEARTBEAT)

    def _set(self, state: State) -> None:
        self._client.set_flow_run_state(self._run_id, state, force=True)


def _patiently(ask: Callable[[], T], log: Log) -> T:
    """Return what Prefect's server answers, in the end: a stage that runs does not mind."""
    deadline = time.monotonic() + _SERVER_PATIENCE
    told = False
    while True:
        try:
            return ask()
        except ObjectNotFound as error:
            raise InfrastructureError(f"the run of the stage was deleted: {error}") from error
        except (httpx.HTTPError, PrefectHTTPStatusError) as error:
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"Prefect's server has not answered for {_SERVER_PATIENCE:.0f} s: {error}"
                ) from error
            if not told:
                log(f"Prefect's server does not answer ({error}); waiting for it")
                told = True
            pause(2.0)
