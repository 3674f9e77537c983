from collections.abc import Callable, Iterator

import pytest

from tests.pipelines.tiny import Project, serve


@pytest.fixture(scope="module")
def use(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Project], Project]]:
    """Make projects' flows use one server of Prefect for all tests of a file."""
    with serve(tmp_path_factory.mktemp("record")) as use:
        yield use
