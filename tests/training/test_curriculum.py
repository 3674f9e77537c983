"""The curriculum: pure functions of the step."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from implicit_models.cost.flops import configuration_flops
from implicit_models.cost.passes import step_flops
from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.broyden import Broyden
from implicit_models.equilibrium.gradients import ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.phase import Phase, bounded_phase, free_phase
from implicit_models.equilibrium.solvers import BestSoFar, Picard
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow
from implicit_models.equilibrium.window import Window
from implicit_models.families.sizes import from_size
from implicit_models.parameters import ParameterError
from implicit_models.training.curriculum import bounded_segment, free_segment
from implicit_models.training.parameters import (
    BoundedParameters,
    FreeParameters,
    MonitoringParameters,
    OptimisationParameters,
)
from implicit_models.training.sequence_parameters import LengthParameters
from tests.training.setup_training import BOUNDED, FREE, FREE_PARAMETERS, LENGTHS, OPTIMISATION

SEARCHED = ResidualBelow(0.05, 8)


def test_phases_follow_each_other_without_a_gap() -> None:
    assert BOUNDED.last_step == FREE.first_step == 5
    assert BOUNDED.phase == bounded_phase(2)
    assert FREE.phase == free_phase(0.05, 8, 2, 0.8)


def test_learning_rate_warms_up_stays_and_decays_as_a_square_root() -> None:
    peak, final = OPTIMISATION.learning_rate, OPTIMISATION.final_learning_rate
    rates = [BOUNDED.learning_rate_at(step, OPTIMISATION) for step in range(5)]
    assert rates == pytest.approx([peak / 3, 2 * peak / 3, peak, peak, peak])
    rates = [FREE.learning_rate_at(step, OPTIMISATION) for step in range(5, 17)]
    assert rates[:8] == [peak] * 8
    expected = [final + (peak - final) * (1 - np.sqrt(done / 4)) for done in (1, 2, 3, 4)]
    assert rates[8:] == pytest.approx(expected)
    assert rates[-1] == pytest.approx(final)


def test_lengths_grow_and_are_drawn_below_their_maximum() -> None:
    drawn = np.array([[FREE.length_at(step, seed) for step in range(5, 17)] for seed in range(200)])
    assert drawn.min(0).tolist() == [2] * 12
    assert drawn.max(0).tolist() == [3, 3, 4, 5] + [6] * 8
    assert [FREE.length_at(9, 3)] * 3 == [FREE.length_at(9, 3) for _ in range(3)]


def free(**changes: Any) -> FreeParameters:
    return FREE_PARAMETERS.replace(**changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"solver": "anderson"}, Phase(Anderson(damping=0.8), SEARCHED, Phantom(2, 0.8))),
        (
            {"solver": "broyden", "best_so_far": True},
            Phase(BestSoFar(Broyden(damping=0.8)), SEARCHED, Phantom(2, 0.8)),
        ),
        (
            {"gradient": "implicit_function", "phantom_steps": None},
            Phase(Picard(0.8), SEARCHED, ImplicitFunction(Picard(0.8), SEARCHED)),
        ),
        (
            {"gradient": "unrolled", "phantom_steps": None, "unrolled_steps": 3, "damping": 1.0},
            Phase(Picard(), SEARCHED, Unrolled(3)),
        ),
        ({"window": "whole"}, Phase(Picard(0.8), SEARCHED, Phantom(2, 0.8))),
        ({"window": 3}, Phase(Picard(0.8), SEARCHED, Phantom(2, 0.8), Window(3, 8))),
        (
            {"window": 3, "patience": 2},
            Phase(Picard(0.8), SEARCHED, Phantom(2, 0.8), Window(3, 2)),
        ),
    ],
)
def test_solver_and_gradient_of_the_free_phase(changes, expected) -> None:
    assert free_segment(free(**changes), first_step=5).phase == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phantom_steps": None}, "phantom_steps is missing; allowed is int, at least 1, with gra"),
        ({"gradient": "unrolled", "phantom_steps": None}, "unrolled_steps is missing"),
        ({"gradient": "unrolled"}, "phantom_steps = 2 is not allowed; .* gradient = 'unrolled'"),
        ({"unrolled_steps": 2}, "unrolled_steps = 2 is not allowed; .* gradient = 'phantom'"),
        ({"gradient": "implicit_function"}, "phantom_steps = 2 is not allowed; .* only null"),
        (
            {"gradient": "unrolled", "phantom_steps": None, "unrolled_steps": 2},
            "damping = 0.8 is not allowed; allowed is 1.0 with gradient = 'unrolled'",
        ),
        ({"solver": "anderson", "window": 3}, "window = 3 .* with solver = 'anderson'"),
        ({"patience": 3}, "patience = 3 is not allowed; .* without a window"),
        ({"gradient": "neumann"}, "gradient = 'neumann' is not allowed"),
    ],
)
def test_a_free_phase_that_cannot_be_is_refused(changes, message) -> None:
    with pytest.raises(ParameterError, match=f"^{message}"):
        free(**changes)


def test_equal_lengths_are_fixed() -> None:
    lengths = LengthParameters(minimum=7, start=7, end=7)
    segment = type(FREE)(**{**FREE.__dict__, "lengths": lengths})
    assert {segment.length_at(step, 0) for step in range(5, 17)} == {7}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: LengthParameters(minimum=5, start=4, end=6), "minimum, start, end are 5, 4, 6"),
        (lambda: LengthParameters(minimum=0, start=4, end=6), "minimum"),
        (lambda: LengthParameters(minimum=1, start=4, end=6), "growth_steps is 0"),
        (
            lambda: BoundedParameters(num_training_steps=3, num_self_iterations=1, lengths=LENGTHS),
            "lengths.growth_steps is 4; it must be at most num_training_steps, 3",
        ),
        (
            lambda: BoundedParameters(num_training_steps=9, num_self_iterations=0, lengths=LENGTHS),
            "num_self_iterations = 0",
        ),
        (
            lambda: MonitoringParameters(
                log_every=10, validate_every=25, validation_sequences=1, checkpoint_every=1
            ),
            "validate_every is 25; it must be a multiple of log_every, 10",
        ),
        (
            lambda: OptimisationParameters(
                learning_rate=1e-6, clip_norm=1.0, batch_size=1, warmup_steps=0
            ),
            "final_learning_rate is 1e-05; it must be at most learning_rate, 1e-06",
        ),
        (
            lambda: FreeParameters(
                num_training_steps=5,
                tolerance=0.1,
                max_steps=3,
                phantom_steps=1,
                damping=1.0,
                decay_steps=6,
                lengths=LENGTHS,
            ),
            "decay_steps is 6; it must be at most num_training_steps, 5",
        ),
        (
            lambda: FreeParameters(
                num_training_steps=5,
                tolerance=0.1,
                max_steps=3,
                phantom_steps=1,
                damping=1.0,
                window=2,
                patience=4,
                decay_steps=0,
                lengths=LENGTHS,
            ),
            "patience = 4 is not allowed; allowed is at most max_steps, 3",
        ),
    ],
)
def test_impossible_parameters_are_named(make, named: str) -> None:
    with pytest.raises(ParameterError, match=named):
        make()


FIXED = LengthParameters(minimum=8, start=8, end=8)


def bounded(**changes: Any) -> BoundedParameters:
    settings = {"num_training_steps": 10, "num_self_iterations": 4, "lengths": FIXED, **changes}
    return BoundedParameters(**settings)


def test_four_and_one_is_four_iterations_without_gradient_and_one_with() -> None:
    segment = bounded_segment(bounded(phantom_steps=1, damping=0.8))
    expected = Phase(Picard(0.8), FixedSteps(4), Phantom(1, 0.8))
    assert segment.phase == expected
    assert bounded_segment(bounded()).phase == Phase(Picard(), FixedSteps(0), Unrolled(4))


def test_four_and_one_costs_the_papers_seven_thirds_of_an_explicit_step() -> None:
    """4 evaluations forward and one forward and backward, against one forward and backward."""
    config = from_size("mamba2-130m")
    model = configuration_flops(config)
    blocks = dataclasses.replace(model, head=0, injection=0)
    costs = {
        phase: step_flops(
            blocks, phase, length=2048, num_sequences=1, search_evaluations=4 * 2048 * bool(phase)
        )
        for phase in (None, bounded_segment(bounded(phantom_steps=1)).phase)
    }
    explicit, four_and_one = costs.values()
    assert four_and_one / explicit == pytest.approx(7 / 3)


@pytest.mark.parametrize(("share", "steps"), [(0.7, 145), (0.8, 166), (0.9, 186)])
def test_the_bounded_share_of_all_steps(share: float, steps: int) -> None:
    parameters = bounded(num_training_steps=None, share=share, total_training_steps=207)
    assert bounded_segment(parameters).last_step == parameters.steps == steps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": 0.8}, "num_training_steps, share, total_training_steps are 10, 0.8, None"),
        ({"num_training_steps": None}, "are None, None, None; allowed is either the first, or"),
        ({"num_training_steps": None, "share": 0.8}, "are None, 0.8, None"),
        ({"share": 0.8, "total_training_steps": 10}, "are 10, 0.8, 10"),
        ({"damping": 0.8}, "damping = 0.8 is not allowed; allowed is only null without phantom"),
    ],
)
def test_bounded_steps_are_given_once(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        bounded(**changes)


@pytest.mark.parametrize(
    ("batch", "sequences"), [({"batch_size": 6}, 6), ({"batch_tokens": 1_048_576}, 512)]
)
def test_a_global_batch_in_sequences_or_tokens(batch: dict[str, int], sequences: int) -> None:
    parameters = OptimisationParameters(learning_rate=1e-3, clip_norm=1.0, warmup_steps=0, **batch)
    assert parameters.sequences_a_step(2048) == sequences


@pytest.mark.parametrize("batch", [{}, {"batch_size": 6, "batch_tokens": 12}])
def test_one_global_batch(batch: dict[str, int]) -> None:
    with pytest.raises(ParameterError, match="batch_size, batch_tokens: .* allowed is one of them"):
        OptimisationParameters(learning_rate=1e-3, clip_norm=1.0, warmup_steps=0, **batch)
