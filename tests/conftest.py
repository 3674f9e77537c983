import os
from collections.abc import Iterator

import pytest
import torch

from tests.repositories import Repository, clone

# Triton reads it when first imported, which torch does on the way to its compiler: set it early.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

torch.set_num_threads(1)  # for models as small as these a second thread costs more than it saves


@pytest.fixture(scope="session")
def quick_repro(tmp_path_factory) -> Iterator[Repository]:
    """A clone of this repository in which `dvc repro` has run once, on the preset `quick`."""
    repository = clone(tmp_path_factory.mktemp("quick") / "repository", preset="quick")
    repository.outputs.append(repository.run("dvc", "repro"))
    yield repository
