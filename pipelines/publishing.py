"""Artifacts in Prefect, published as long as its server answers; a stage never waits for it."""

import contextvars
import threading
import time
from collections.abc import Callable

import httpx
from prefect.artifacts import create_markdown_artifact
from prefect.settings import PREFECT_API_URL

from pipelines.outcomes import Outcomes

_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 0.3


def publish(markdown: str, key: str, description: str, outcomes: Outcomes) -> None:
    """Publish a page, or note in the outcomes why the record of the flow lacks it."""
    try:
        # Prefect's own client tries for a minute and more, at every call.
        httpx.get(f"{PREFECT_API_URL.value()}/health", timeout=_ANSWER_SECONDS)
        create_markdown_artifact(markdown, key=key, description=description)
    except Exception as error:
        outcomes.note_unrecorded(error)


class LatePages:
    """Pages that wait for something, which the stages after theirs do not have to wait for."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()

    def add(self, is_ready: Callable[[], bool], publish_page: Callable[[], None]) -> None:
        """Publish a page when it is ready, or when `close` waits no longer; at once if it is."""
        if is_ready():
            publish_page()
            return

        def wait() -> None:
            while not is_ready() and not self._ended.wait(_LOOK_SECONDS):
                pass
            publish_page()

        # Prefect's context says to which task's run the page belongs.
        thread = threading.Thread(target=contextvars.copy_context().run, args=(wait,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self, patience: float, stopping: Callable[[], bool] = lambda: False) -> None:
        """Publish every page: once it is ready, after `patience` seconds, or when that is over."""
        end = time.monotonic() + patience
        for thread in self._threads:
            while thread.is_alive() and time.monotonic() < end and not stopping():
                thread.join(_LOOK_SECONDS)
        self._ended.set()
        for thread in self._threads:
            thread.join()
