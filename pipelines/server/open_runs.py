"""Runs that Prefect's database has as under way although nobody works on them any more.

A server may have runs of other repositories and of other machines as well: a repository's own flow
runs have a tag, and only these, and their tasks, are ever closed.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, StateType
from prefect.context import TagsContext
from prefect.states import Crashed

ENDED = sorted(TERMINAL_STATES)
UNDER_WAY = sorted(set(StateType) - TERMINAL_STATES)


def own_tag(root: Path) -> str:
    """Return the tag of the flow runs that a repository on this machine has begun."""
    return f"{socket.gethostname()}:{root.resolve()}"


@contextmanager
def untagged_tasks() -> Iterator[None]:
    """Keep the flow run's tag from its tasks; for a block within the flow.

    Prefect would ask the server for a slot of each tag before a task begins.
    """
    with TagsContext(current_tags=set()):
        yield


def close_left_over_runs(tag: str) -> None:
    """Mark as crashed the flow runs of a tag, and their tasks, whose process is gone.

    Runs of deployments are left alone: they belong to workers, which may well be alive.
    """
    state = Crashed(message="The process of this run ended without a word, for example by SIGKILL.")
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=_flow_runs(tag, UNDER_WAY)):
            if run.deployment_id is None:
                client.set_flow_run_state(run.id, state, force=True)
        for task in open_tasks(client, tag):
            client.set_task_run_state(task, state, force=True)


def close_open_runs(tag: str, patience: float) -> None:
    """Wait until the tasks of ended flows of a tag are recorded as ended; mark what never was.

    The states of tasks travel as events, which a server records a moment after it has got them.
    """
    state = Crashed(message="The flow ended before this task did.")
    end = monotonic() + patience
    with get_client(sync_client=True) as client:
        while (tasks := open_tasks(client, tag)) and monotonic() < end:
            sleep(0.1)
        for task in tasks:
            client.set_task_run_state(task, state, force=True)


def open_tasks(client: SyncPrefectClient, tag: str) -> list[UUID]:
    """Return the task runs that are under way although their flow run, of a tag, has ended."""
    under_way = TaskRunFilterState(type=TaskRunFilterStateType(any_=UNDER_WAY))
    runs = client.read_task_runs(
        flow_run_filter=_flow_runs(tag, ENDED), task_run_filter=TaskRunFilter(state=under_way)
    )
    return [run.id for run in runs]


def _flow_runs(tag: str, states: list[StateType]) -> FlowRunFilter:
    in_state = FlowRunFilterState(type=FlowRunFilterStateType(any_=states))
    return FlowRunFilter(state=in_state, tags=FlowRunFilterTags(all_=[tag]))
