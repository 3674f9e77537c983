"""How a flow is stopped from outside: Ctrl-C, SIGTERM, SIGHUP, and Cancel in Prefect."""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import FrameType

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext

from pipelines.outcomes import Outcomes
from pipelines.processes import in_background, stop_all
from pipelines.signals import handled_signals

_WATCH_SECONDS = 3.0


@contextlib.contextmanager
def stopped_from_outside(outcomes: Outcomes) -> Iterator[None]:
    """Stop what a flow runs when somebody wants that; for a block within the flow.

    The first signal stops, a second one kills. Within the flow, for Prefect listens to SIGTERM as
    well and would give up the flow at once.

    Parameters
    ----------
    outcomes
        Gets the number of the first signal.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        repeats = outcomes.insistence.repeats(number)
        if outcomes.stopped_by is None:
            outcomes.stopped_by = number
        if repeats:
            stop_all(patience=0)
        else:
            stop_all()

    with handled_signals(stop), _cancelled_elsewhere():
        if outcomes.stopped_by is not None:  # before this, and a library lost it
            stop_all()
        yield


def _cancelled_elsewhere() -> AbstractContextManager[None]:
    """Stop when the flow's run is cancelled in Prefect; nobody else tells us of that."""
    context = FlowRunContext.get()
    assert context is not None and context.flow_run is not None
    run_id = context.flow_run.id

    def watch(ended: threading.Event) -> None:
        with get_client(sync_client=True) as client:
            while not ended.wait(_WATCH_SECONDS):
                # A server that does not answer is no reason to stop: it may come back.
                with contextlib.suppress(Exception):
                    state = client.read_flow_run(run_id).state
                    if state is not None and (state.is_cancelling() or state.is_cancelled()):
                        stop_all()
                        return

    return in_background(watch, _WATCH_SECONDS)
