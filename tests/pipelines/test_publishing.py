"""Pages that wait until a stage's run is in MLflow."""

import contextvars
import threading

from pipelines.publishing import LatePages

TASK = contextvars.ContextVar("task", default="none")


def test_a_page_that_is_ready_is_published_at_once_and_by_the_caller():
    pages, published = LatePages(), []
    pages.add(lambda: True, lambda: published.append(threading.current_thread()))
    assert published == [threading.current_thread()]


def test_a_page_is_published_when_it_is_ready_in_the_context_of_its_task():
    pages, published, is_sent = LatePages(), [], threading.Event()
    token = TASK.set("train_free")
    pages.add(is_sent.is_set, lambda: published.append((TASK.get(), is_sent.is_set())))
    TASK.reset(token)
    assert published == []
    is_sent.set()
    pages.close(patience=30)
    assert published == [("train_free", True)]


def test_a_page_that_never_is_ready_is_published_when_the_patience_is_over():
    pages, published = LatePages(), []
    pages.add(lambda: False, lambda: published.append("late"))
    pages.close(patience=0.05)
    assert published == ["late"]


def test_a_page_waits_no_longer_once_the_flow_is_stopped():
    pages, published = LatePages(), []
    pages.add(lambda: False, lambda: published.append("stopped"))
    pages.close(patience=3600, stopping=lambda: True)
    assert published == ["stopped"]
