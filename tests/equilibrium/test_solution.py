"""The summary of a search: the figures of a log, computed by hand."""

import dataclasses

import pytest
import torch

from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.solution import Result, Solution, joined
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow
from implicit_models.equilibrium.window import Window
from tests.equilibrium.cells import causal_cell


def test_metrics_sum_up_what_was_searched() -> None:
    nan, inf = float("nan"), float("inf")
    solution = Solution(
        value=torch.zeros(2, 3, 1),
        steps=torch.tensor([[3, 4, 0], [2, 2, 2]]),
        residual=torch.tensor([[0.1, 0.4, 9.0], [0.2, nan, inf]]),
        result=torch.tensor([[0, 1, 0], [0, 2, 2]], dtype=torch.uint8),
        depth=torch.tensor([5, 2]),
        token_evaluations=torch.tensor([10, 6]),
    )
    metrics = solution.metrics()
    expected = {
        "self_iterations": 3.5,
        "token_evaluations": 16.0,
        "share_not_converged": 3 / 5,
        "residual": 0.7 / 3,
        "residual_p50": 0.2,
        "residual_p95": 0.38,
        "residual_max": 0.4,
    }
    assert metrics == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("window", [None, Window(3, 2)])
def test_metrics_of_a_search_are_plain_finite_numbers(window: Window | None) -> None:
    cell = causal_cell()
    lengths = torch.tensor([7, 1, 0, 4])
    solution = find_fixed_point(
        cell,
        torch.zeros_like(cell.offset),
        Picard(),
        ResidualBelow(1e-6, 500),
        window=window,
        lengths=lengths,
    )
    metrics = solution.metrics()
    assert all(type(number) is float for number in metrics.values())
    assert metrics["share_not_converged"] == 0
    assert 0 < metrics["residual_p50"] <= metrics["residual_max"] < 1e-6
    assert metrics["token_evaluations"] == solution.token_evaluations.sum()


def test_a_search_that_explodes_everywhere_has_no_residual_to_speak_of() -> None:
    cell = causal_cell()
    cell.offset[:] = torch.nan
    solution = find_fixed_point(cell, torch.zeros_like(cell.offset), Picard(), FixedSteps(3))
    assert (solution.result == Result.NON_FINITE).all()
    assert solution.metrics() == {
        "self_iterations": 1.0,
        "token_evaluations": 28.0,
        "share_not_converged": 1.0,
    }


def test_no_search_has_no_metrics() -> None:
    cell = causal_cell()
    assert find_fixed_point(cell, cell.offset, Picard(), FixedSteps(0)).metrics() == {}


def test_searches_of_parts_are_joined_to_those_of_the_whole() -> None:
    cell = causal_cell()
    stopping = ResidualBelow(1e-4, 30)
    whole = find_fixed_point(cell, torch.zeros_like(cell.offset), Picard(), stopping)
    parts = [
        dataclasses.replace(
            whole, **{name: getattr(whole, name)[rows] for name in vars(whole)}
        ).without_value()
        for rows in (slice(0, 1), slice(1, 4))
    ]
    found = joined(parts)
    assert found.value.shape == (4, 7, 0)
    assert found.value.untyped_storage().nbytes() == 0
    assert found.metrics() == whole.metrics()
