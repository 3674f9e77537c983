"""Fixed points of a cell: the search, its stopping, and its gradients. Knows no model.

Nothing is imported before it is asked for: parameters read names from here without torch.
"""

from typing import TYPE_CHECKING

from implicit_models.lazy_names import lazy_names

if TYPE_CHECKING:
    from implicit_models.equilibrium.anderson import Anderson
    from implicit_models.equilibrium.broyden import Broyden
    from implicit_models.equilibrium.cells import (
        Carry,
        CausalCell,
        Cell,
        SteppingCell,
        Trail,
        WindowedCell,
    )
    from implicit_models.equilibrium.gradients import (
        Gradient,
        ImplicitFunction,
        Phantom,
        Unrolled,
    )
    from implicit_models.equilibrium.iterate import find_fixed_point
    from implicit_models.equilibrium.jacobian import (
        JacobianPenalty,
        spectral_radius,
        token_spectral_radius,
    )
    from implicit_models.equilibrium.phase import (
        Phase,
        SearchSettings,
        bounded_phase,
        free_phase,
        search_phase,
    )
    from implicit_models.equilibrium.solution import Result, Solution
    from implicit_models.equilibrium.solvers import BestSoFar, Picard, Solver
    from implicit_models.equilibrium.stopping import (
        FixedSteps,
        ResidualBelow,
        Stopping,
        absolute_residual,
        relative_residual,
    )
    from implicit_models.equilibrium.window import Window

__getattr__, __dir__ = lazy_names(__name__)
