import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch

from tests.repositories import Repository, clone
from tests.shape_checks import begin_test, check_once

# Triton reads it when first imported, which torch does on the way to its compiler: set it early.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests interrupt and hang up what they start, whoever has started them: nohup, or a shell's `&`.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

check_once()
torch.set_num_threads(1)  # for models as small as these a second thread costs more than it saves


@pytest.hookimpl(wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Return one worker more than there are processors: some tests wait for what they started."""
    number = yield
    return number + ("PYTEST_XDIST_AUTO_NUM_WORKERS" not in os.environ)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of slow tests, so that no worker is left alone with one in the end."""
    tests = Counter(item.path for item in items)
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path] / tests[item.path])


def pytest_runtest_setup() -> None:
    """Begin to look at shapes anew."""
    begin_test()


def pytest_collection_finish() -> None:
    """Leave what was imported out of all later collections of garbage: an eighth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def quick_repro(tmp_path_factory) -> Iterator[Repository]:
    """A clone of this repository in which `dvc repro` has run once, on the preset `quick`."""
    repository = clone(tmp_path_factory.mktemp("quick") / "repository", preset="quick")
    repository.outputs.append(repository.run("dvc", "repro"))
    yield repository


@pytest.fixture(scope="session")
def tiny_project(tmp_path_factory) -> Iterator[Path]:
    """A folder, to be copied, in which a preset made tiny has come to its report."""
    from tests.fuzz.project import make_project

    folder = tmp_path_factory.mktemp("tiny") / "project"
    with pytest.MonkeyPatch.context() as patch:
        make_project(folder, "quick", patch)
    yield folder


@pytest.fixture(scope="session")
def empty_record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a record of Prefect without runs, once for all workers of pytest."""
    from tests.pipelines.tiny import make_empty_record

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return make_empty_record(shared / "empty_record")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a database of MLflow once: creating it takes seconds, copying it none."""
    from implicit_models.tracking import mlflow

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with mlflow._environment():
        mlflow.connect(f"sqlite:///{path}").get_experiment_by_name("none")
    return path


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no figure of a report: an empty one stands for each."""
    monkeypatch.setattr("implicit_models.reporting.illustration.svg_of", lambda *_: "<svg></svg>\n")
