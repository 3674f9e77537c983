from pathlib import Path

import pytest

from implicit_models.problems.problem import results_of
from implicit_models.reporting.results import RunResults, read_results
from tests.reporting.synthetic import parameters, tables, write_results


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of the made-up entries."""
    root = tmp_path_factory.mktemp("synthetic")
    write_results(root)
    return root


@pytest.fixture(scope="module")
def runs(root: Path) -> list[RunResults]:
    """The results of the made-up entries, in their order."""
    return read_results(root / "results" / "runs", tables(parameters()), results_of)
