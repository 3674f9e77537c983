"""The flow of the pipeline, sent a SIGTERM of its own at the moment that is named."""

import os
import signal
import sys
from typing import Any
from unittest.mock import patch

from pipelines import reproduce


def send() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def in_a_finaliser() -> None:
    """As in the midst of an import: its interrupt is only printed."""
    status = reproduce.dag_status

    class Lost:
        def __del__(self) -> None:
            send()
            for _ in range(1000):
                pass

    def look_again(*arguments: Any) -> Any:
        lost = Lost()
        del lost
        return status(*arguments)

    patch.object(reproduce, "dag_status", look_again).start()


def after_the_last_stage() -> None:
    from pipelines.publishing import LatePages

    close = LatePages.close

    def close_late(*arguments: Any) -> None:
        send()
        close(*arguments)

    patch.object(LatePages, "close", close_late).start()


def before_the_flow_is_prefects() -> None:
    from prefect.flow_engine import FlowRunEngine

    create = FlowRunEngine.create_flow_run

    def create_and_send(*arguments: Any) -> Any:
        run = create(*arguments)
        send()
        return run

    patch.object(FlowRunEngine, "create_flow_run", create_and_send).start()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    sys.exit(reproduce.main([]))
