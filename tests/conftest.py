import os
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from tests.repositories import Repository, clone
from tests.shape_checks import check_once

# Triton reads it when first imported, which torch does on the way to its compiler: set it early.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

check_once()
torch.set_num_threads(1)  # for models as small as these a second thread costs more than it saves


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of slow tests, so that no worker is left alone with one in the end."""
    tests = Counter(item.path for item in items)
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path] / tests[item.path])


@pytest.fixture(scope="session")
def quick_repro(tmp_path_factory) -> Iterator[Repository]:
    """A clone of this repository in which `dvc repro` has run once, on the preset `quick`."""
    repository = clone(tmp_path_factory.mktemp("quick") / "repository", preset="quick")
    repository.outputs.append(repository.run("dvc", "repro"))
    yield repository
