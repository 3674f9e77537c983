from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pipelines.clones import Clones, make_clones
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


@pytest.fixture
def clones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clones:
    """Make a small project, and the remote through which its clones exchange results."""
    for name in ("DVC_STAGE", "DVC_ROOT", "GIT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("IMPLICIT_MODELS_NODE", "one")
    return make_clones(tmp_path)
