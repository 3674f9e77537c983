"""What a node does around its stage: other flows beside it, and what is tracked."""

import pytest

from pipelines.cluster.assignment import Assignment, do_assignment
from pipelines.cluster.exchange import make_request
from pipelines.cluster.placement import Place
from pipelines.running import InfrastructureError
from stages.training.exclusive import trained_by_one
from tests.pipelines.clones import Clones, commit
from tests.repositories import ROOT

TRAIN = """
import logging, pathlib, sys
from stages.training import exclusive
exclusive._PATIENCE_SECONDS = 0.0
try:
    with exclusive.trained_by_one(pathlib.Path("checkpoints/x/train")):
        pass
except exclusive.TrainingBusyError as error:
    sys.exit(f"error: {error}\\n" + "the summary of torchrun\\n" * 20)
sys.exit("it cannot be done")
"""


@pytest.fixture
def training(clones: Clones) -> Clones:
    """Make a training that needs nothing, and fails."""
    (clones.caller / "train.py").write_text(TRAIN)
    description = clones.caller / "dvc.yaml"
    description.write_text(description.read_text().replace("      - data/x/part\n", ""))
    commit(clones.caller)
    clones.clone("one")
    return clones


def do(clones: Clones, log: list[str], **environment: str):
    place = Place(environment={"PYTHONPATH": str(ROOT), **environment})
    assignment = Assignment(make_request(clones.caller, "train@x"), place, 60.0)
    return do_assignment(clones.root / "one", assignment, log.append)


def test_a_node_that_is_at_another_training_of_the_entry_is_tried_again(training):
    log: list[str] = []
    folder = training.root / "one" / "checkpoints" / "x" / "train"
    with (
        trained_by_one(folder),
        pytest.raises(InfrastructureError, match="one is at another training .* tried again") as at,
    ):
        do(training, log)
    assert any("another process trains" in line for line in log)
    assert "workspaces" not in str(at.value)
