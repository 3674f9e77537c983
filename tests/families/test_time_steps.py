"""The time steps that Mamba2's heads begin with."""

import math

import pytest
import torch
import torch.nn.functional as F

from implicit_models.families.building import build
from implicit_models.parameters import ParameterError
from tests.language_models.models import IMPLICIT, VOCABULARY


def time_steps(**settings: float) -> torch.Tensor:
    parameters = IMPLICIT.replace(d_model=256, head_dim=8, **settings)
    model = build(parameters, VOCABULARY, seed=0)
    found = [each for name, each in model.named_parameters() if name.endswith("dt_bias")]
    return F.softplus(torch.cat(found).detach().double())


@pytest.mark.parametrize("ends", [(0.001, 0.1), (0.1, 1.0), (0.05, 0.05)])
def test_they_are_drawn_between_the_two(ends: tuple[float, float]) -> None:
    found = time_steps(time_step_min=ends[0], time_step_max=ends[1])
    low, high = map(math.log, ends)
    assert found.log().min() >= low - 1e-5 and found.log().max() <= high + 1e-5
    assert found.log().mean() == pytest.approx((low + high) / 2, abs=(high - low) / 10 + 1e-5)


def test_left_out_they_are_as_mamba2s_authors_draw_them() -> None:
    assert torch.equal(time_steps(), time_steps(time_step_min=0.001, time_step_max=0.1))


def test_the_wrong_order_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"time_step_min = 0.2 is not allowed"):
        IMPLICIT.replace(time_step_min=0.2)
