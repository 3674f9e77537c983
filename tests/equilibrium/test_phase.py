"""Phases from plain values: every combination is built as it reads, or refused by name."""

import itertools

import pytest

from implicit_models.equilibrium.anderson import Anderson
from implicit_models.equilibrium.broyden import Broyden
from implicit_models.equilibrium.gradients import ImplicitFunction, Phantom, Unrolled
from implicit_models.equilibrium.jacobian import JacobianPenalty
from implicit_models.equilibrium.phase import (
    GRADIENTS,
    SOLVERS,
    Phase,
    SearchSettings,
    bounded_phase,
    free_phase,
    search_phase,
)
from implicit_models.equilibrium.solvers import BestSoFar, Picard
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow
from implicit_models.equilibrium.window import Window

CLASSES = {"picard": Picard, "anderson": Anderson, "broyden": Broyden}


def expected_error(
    solver: str, best: bool, damping: float, tolerance: float | None, window: int | None, gradient
) -> str | None:
    """Return a pattern of the message that refuses a combination, None where it is allowed."""
    if window is not None and tolerance is None:
        return "window is 4 and tolerance is None; .* needs a tolerance"
    if window is not None and (solver != "picard" or best):
        return f"solver is '{solver}', best_so_far is {best} and window is 4; .* solver picard "
    if gradient == "unrolled" and damping != 1.0:
        return "gradient is 'unrolled' and damping is 0.8; .* allowed is damping 1.0"
    if gradient == "implicit_function" and tolerance is None:
        return "tolerance is None and gradient is 'implicit_function'"
    return None


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("tolerance", [None, 0.05])
@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_combination_is_built_or_refused(
    solver: str, best: bool, tolerance: float | None, window: int | None
) -> None:
    for damping, gradient in itertools.product((0.8, 1.0), (None, *GRADIENTS)):
        steps = 3 if gradient in ("phantom", "unrolled") else None

        def build(damping: float = damping, gradient=gradient, steps=steps) -> Phase:
            settings = SearchSettings(
                solver=solver,
                damping=damping,
                best_so_far=best,
                tolerance=tolerance,
                max_steps=9,
                window=window,
                patience=None if window is None else 2,
            )
            return settings.phase(gradient, steps)

        message = expected_error(solver, best, damping, tolerance, window, gradient)
        if message is not None:
            with pytest.raises(ValueError, match=message):
                build()
            continue
        inner = CLASSES[solver](damping=damping)
        made = BestSoFar(inner) if best else inner
        stopping = FixedSteps(9) if tolerance is None else ResidualBelow(tolerance, 9)
        gradients = {
            None: None,
            "phantom": Phantom(3, damping),
            "unrolled": Unrolled(3),
            "implicit_function": ImplicitFunction(made, stopping),
        }
        slid = None if window is None else Window(window, 2)
        assert build() == Phase(made, stopping, gradients[gradient], slid)


@pytest.mark.parametrize(
    ("changes", "gradient", "match"),
    [
        ({"solver": "newton"}, (), "solver is 'newton'; allowed are anderson, broyden, picard"),
        ({"damping": 2.0}, (), "damping is 2.0; it must lie between 0 and 2"),
        ({"tolerance": 0.0}, (), "tolerance is 0.0; it must be positive"),
        ({"max_steps": 0}, (), "max_steps is 0; it must be 1 or more"),
        ({"tolerance": None, "max_steps": -1}, (), "max_steps is -1; it must be 0 or more"),
        ({"window": 3}, (), "patience is None and window is 3; allowed is a number with a window"),
        ({"patience": 3}, (), "patience is 3 and window is None; .* None without"),
        ({"window": 0, "patience": 2}, (), "window is 0; it must be 1 or more"),
        ({"window": 3, "patience": 10}, (), "patience is 10; it must be at most max_steps, 9"),
        ({}, ("neumann",), "gradient is 'neumann'; allowed are implicit_function, phantom"),
        ({}, ("phantom",), "gradient_steps is None and gradient is 'phantom'; allowed is 1"),
        ({}, ("unrolled", 0), "gradient_steps is 0; it must be 1 or more"),
        ({}, ("implicit_function", 2), "gradient_steps is 2 and gradient is 'implicit_function'"),
        ({}, (None, 2), "gradient_steps is 2 and gradient is None; allowed is None"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict, gradient: tuple, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        SearchSettings(**{"tolerance": 0.1, "max_steps": 9} | changes).phase(*gradient)


def test_a_windows_gradient_solves_over_whole_sequences() -> None:
    settings = SearchSettings(damping=0.7, tolerance=0.1, max_steps=9, window=3, patience=2)
    phase = settings.phase("implicit_function")
    assert phase.window == Window(3, 2)
    assert phase.gradient == ImplicitFunction(Picard(0.7), ResidualBelow(0.1, 9))


def test_the_usual_phases() -> None:
    penalty = JacobianPenalty(2.0)
    assert bounded_phase(4) == Phase(Picard(), FixedSteps(0), Unrolled(4))
    assert bounded_phase(4, 1, 0.8) == Phase(Picard(0.8), FixedSteps(4), Phantom(1, 0.8))
    searched = Picard(0.8), ResidualBelow(0.1, 9)
    assert search_phase(0.1, 9, 0.8, Window(3, 2)) == Phase(*searched, None, Window(3, 2))
    free = free_phase(0.1, 9, 2, 0.8, Window(3, 2), penalty)
    assert free == Phase(*searched, Phantom(2, 0.8), Window(3, 2), penalty)
