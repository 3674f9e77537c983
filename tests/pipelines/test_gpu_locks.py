"""The locks of GPUs on a machine that several users share."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.cluster.gpus import held_gpus
from pipelines.running import StageFailedError, StoppedError, allow_all, stop_all

NODE = {"IMPLICIT_MODELS_GPUS": "0,1", "IMPLICIT_MODELS_NODE": "a"}


@pytest.fixture
def private() -> Iterator[None]:
    """Make what is made readable for its owner alone, unless that is changed."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def others(tmp_path, monkeypatch) -> Path:
    """Return the lock of the first GPU, which is another user's and cannot be read."""
    lock = tmp_path / "a-0.lock"
    lock.touch(0o600)
    opened = os.open

    def refuse(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if path == lock and not flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    return lock


def test_other_users_may_read_a_lock_whatever_the_umask_is(tmp_path, private):
    with held_gpus(2, print, NODE, tmp_path / "locks"):
        modes = [lock.stat().st_mode & 0o777 for lock in (tmp_path / "locks").iterdir()]
    assert modes == [0o644, 0o644]


def test_a_gpu_whose_lock_cannot_be_read_is_left_out(tmp_path, others):
    with held_gpus(1, print, NODE, tmp_path) as held:
        assert held.names == ("1",)
        stop_all()  # the other one is waited for
        try:
            with pytest.raises(StoppedError), held_gpus(1, lambda line: None, NODE, tmp_path):
                pass
        finally:
            allow_all()


def test_where_too_few_are_left_the_lock_is_named(tmp_path, others):
    refused = pytest.raises(StageFailedError, match=f"{others}: .*Permission denied.*remove")
    with refused, contextlib.ExitStack() as stack:
        stack.enter_context(held_gpus(2, print, NODE, tmp_path))
