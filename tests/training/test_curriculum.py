"""The curriculum: pure functions of the step."""

import numpy as np
import pytest

from implicit_models.equilibrium.phase import bounded_phase, free_phase
from implicit_models.parameters import ParameterError
from implicit_models.training.parameters import (
    BoundedParameters,
    FreeParameters,
    LengthParameters,
    MonitoringParameters,
    OptimisationParameters,
)
from tests.training.setup_training import BOUNDED, FREE, LENGTHS, OPTIMISATION


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
