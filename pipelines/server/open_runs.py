"""Runs that Prefect's database has as under way although nobody works on them any more."""

from time import monotonic, sleep
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, StateType
from prefect.states import Crashed

ENDED = sorted(TERMINAL_STATES)
UNDER_WAY = sorted(set(StateType) - TERMINAL_STATES)


def close_left_over_runs() -> None:
    """Mark as crashed the flow runs, and their tasks, whose process is gone.

    Runs of deployments are left alone: they belong to workers, which may well be alive.
    """
    state = Crashed(message="The process of this run ended without a word, for example by SIGKILL.")
    under_way = FlowRunFilterState(type=FlowRunFilterStateType(any_=UNDER_WAY))
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(state=under_way)):
            if run.deployment_id is None:
                client.set_flow_run_state(run.id, state, force=True)
        for task in open_tasks(client):
            client.set_task_run_state(task, state, force=True)


def close_open_runs(patience: float) -> None:
    """Wait until the tasks of ended flows are recorded as ended; mark what never was.

    The states of tasks travel as events, which a server records a moment after it has got them.
    """
    state = Crashed(message="The flow ended before this task did.")
    end = monotonic() + patience
    with get_client(sync_client=True) as client:
        while (tasks := open_tasks(client)) and monotonic() < end:
            sleep(0.1)
        for task in tasks:
            client.set_task_run_state(task, state, force=True)


def open_tasks(client: SyncPrefectClient) -> list[UUID]:
    """Return the task runs that are under way although their flow run has ended."""
    ended = FlowRunFilterState(type=FlowRunFilterStateType(any_=ENDED))
    under_way = TaskRunFilterState(type=TaskRunFilterStateType(any_=UNDER_WAY))
    runs = client.read_task_runs(
        flow_run_filter=FlowRunFilter(state=ended), task_run_filter=TaskRunFilter(state=under_way)
    )
    return [run.id for run in runs]
