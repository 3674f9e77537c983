import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipelines.tiny import Project, make_empty_record, record_of, serve


@pytest.fixture(scope="session")
def empty_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of Prefect without runs, made once for all workers of pytest."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return make_empty_record(shared / "empty_record")


@pytest.fixture(scope="module")
def use(
    tmp_path_factory: pytest.TempPathFactory, empty_record: Path
) -> Iterator[Callable[[Project], Project]]:
    """Make projects' flows use one server of Prefect for all tests of a file."""
    folder = tmp_path_factory.mktemp("record")
    record_of(empty_record, folder)
    with serve(folder) as use:
        yield use
