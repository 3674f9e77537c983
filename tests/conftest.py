from collections.abc import Iterator

import pytest

from tests.repositories import Repository, clone


@pytest.fixture(scope="session")
def quick_repro(tmp_path_factory) -> Iterator[Repository]:
    """A clone of this repository in which `dvc repro` has run once, on the preset `quick`."""
    repository = clone(tmp_path_factory.mktemp("quick") / "repository", preset="quick")
    repository.outputs.append(repository.run("dvc", "repro"))
    yield repository
