from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipelines.tiny import Project, record_of, serve


@pytest.fixture(scope="module")
def use(
    tmp_path_factory: pytest.TempPathFactory, empty_record: Path
) -> Iterator[Callable[[Project], Project]]:
    """Make projects' flows use one server of Prefect for all tests of a file."""
    folder = tmp_path_factory.mktemp("record")
    record_of(empty_record, folder)
    with serve(folder) as use:
        yield use
