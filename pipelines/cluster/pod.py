"""The first process of a pod: runs Prefect's command, and has its stage stopped in good order.

    python -m pipelines.cluster.pod prefect flow-run execute

Kubernetes sends SIGTERM to the first process alone. Prefect's own would kill the flow at once, for
the flow listens to SIGTERM itself, and have the run started a second time; so the flow gets the
signal from here. It stops its stage, which keeps a checkpoint, and says what came of it.

A pod may also come too late: it has waited for a GPU until its run was given up, or Kubernetes has
put it in the place of one that was deleted. A run that has ended is not begun again.
"""

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType
from uuid import UUID

import psutil
from prefect.client.orchestration import get_client

from pipelines.cluster.gpus import POD

RUN = "PREFECT__FLOW_RUN_ID"

# Not "reschedule": whoever waits for the run tries the stage again.
_ENVIRONMENT = {"PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR": "crash", POD: "1"}


def main(command: list[str]) -> int:
    """Run the command to its end; return its exit status."""
    supervisor: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        if not supervisor:
            sys.exit(128 + number)
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(supervisor[0])
            for stage in process.children() or [process]:
                stage.terminate()

    signal.signal(signal.SIGTERM, hand_on)
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(os.environ[RUN])).state
    if state is not None and state.is_final():
        print(f"the run of this pod is {state.name} already: nothing is done")
        return 0
    supervisor.append(subprocess.Popen(command, env={**os.environ, **_ENVIRONMENT}).pid)
    while True:
        pid, status = os.wait()  # what processes that have died leave behind comes here as well
        if pid in supervisor:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
