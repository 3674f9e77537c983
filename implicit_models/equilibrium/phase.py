"""A phase: every choice that a forward pass of an implicit model leaves open, as one value."""

from dataclasses import dataclass

from implicit_models.equilibrium.gradients import Gradient, Phantom, Unrolled
from implicit_models.equilibrium.jacobian import JacobianPenalty
from implicit_models.equilibrium.solvers import Picard, Solver
from implicit_models.equilibrium.stopping import FixedSteps, ResidualBelow, Stopping
from implicit_models.equilibrium.window import Window


@dataclass(frozen=True)
class Phase:
    """How the fixed point is searched and how the gradient is taken.

    The bounded and the free phase of training, and evaluation, differ in nothing else.

    Attributes
    ----------
    solver, stopping, window
        Of the search; ``window`` None searches whole sequences (the simultaneous mode).
    gradient
        None where none is wanted.
    penalty
        Added to the loss of training, where gradients are enabled; None where none is wanted.
    """

    solver: Solver
    stopping: Stopping
    gradient: Gradient | None
    window: Window | None = None
    penalty: JacobianPenalty | None = None


def bounded_phase(
    num_self_iterations: int, phantom_steps: int | None = None, damping: float = 1.0
) -> Phase:
    """Return the bounded phase: always as many iterations from zero.

    Without ``phantom_steps`` the gradient goes through all of them. With some it goes through these
    alone, which follow the others, damped alike: (4+1) in the paper is four and one.
    """
    if phantom_steps is None:
        return Phase(Picard(), FixedSteps(0), Unrolled(num_self_iterations))
    gradient = Phantom(phantom_steps, damping)
    return Phase(Picard(damping), FixedSteps(num_self_iterations), gradient)


def free_phase(
    tolerance: float,
    max_steps: int,
    phantom_steps: int,
    damping: float,
    window: Window | None = None,
    penalty: JacobianPenalty | None = None,
) -> Phase:
    """Return the free phase: search to the tolerance, then phantom steps, damped alike."""
    stopping = ResidualBelow(tolerance, max_steps)
    return Phase(Picard(damping), stopping, Phantom(phantom_steps, damping), window, penalty)


def search_phase(
    tolerance: float, max_steps: int, damping: float, window: Window | None = None
) -> Phase:
    """Return the phase of evaluation: search to the tolerance, no gradient.

    ``damping`` is best the one the model was trained with: undamped, the search of a trained
    model can end in a cycle.
    """
    return Phase(Picard(damping), ResidualBelow(tolerance, max_steps), None, window)
