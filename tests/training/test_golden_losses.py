"""Training gives the losses that are written down, to the last bit where nothing else differs.

A change that is meant to change them: `tests.training.golden_losses` says how they are written.
"""

import json
from typing import Any

import pytest

from tests.training.golden_losses import FILE, MODELS, PHASES, STEPS, surroundings, train_losses

# Another processor, compiler or torch adds the same numbers in another order: their last bits
# differ, and training passes the difference on from step to step.
ELSEWHERE = 1e-5


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(FILE.read_text())


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("family", MODELS)
def test_losses(family: str, phase: str, golden: dict[str, Any]) -> None:
    found, expected = train_losses(family, phase), golden["losses"][family][phase]
    assert len(found) == STEPS
    if surroundings() == golden["surroundings"]:
        assert found == expected
    else:
        assert found == pytest.approx(expected, rel=ELSEWHERE)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("family", MODELS)
def test_losses_of_the_reference_kernels(family: str, phase: str, golden: dict[str, Any]) -> None:
    found = train_losses(family, phase, "reference")
    assert found == pytest.approx(golden["losses"][family][phase], rel=ELSEWHERE)


@pytest.mark.parametrize("family", MODELS)
def test_every_phase_has_losses_of_its_own(family: str, golden: dict[str, Any]) -> None:
    losses = golden["losses"][family]
    assert set(losses) == set(PHASES)
    assert len({tuple(each) for each in losses.values()}) == len(PHASES)
    assert all(each[-1] < each[0] for each in losses.values())
