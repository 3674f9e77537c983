"""A block of Prefect's API with a flow in it, run in the folder whose record it writes."""

import sys
import time
from pathlib import Path

from pipelines.server.embedded import prefect_api

with prefect_api(Path.cwd()) as address:
    from prefect import flow, task

    from pipelines.server.open_runs import untagged_tasks

    @task(persist_result=False)
    def work(number: int) -> None:
        if number == 2:
            raise ValueError("two")

    @flow(persist_result=False)
    def run() -> None:
        sys.stdout.write("ran\n")
        with untagged_tasks():
            futures = [work.with_options(task_run_name=str(n)).submit(n) for n in range(4)]
        for future in futures:
            future.wait()
        Path("running").write_text(address)
        if "hang" in sys.argv:
            time.sleep(600)

    run(return_state=True)
sys.stdout.write("left\n")
