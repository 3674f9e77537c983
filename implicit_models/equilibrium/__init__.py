"""Fixed points of a cell: the search, its stopping, and its gradients. Knows no model.

Nothing is imported before it is asked for: parameters read names from here without torch.
"""

from typing import TYPE_CHECKING

from implicit_models.lazy_names import lazy_names

if TYPE_CHECKING:
    from implicit_models.equilibrium.anderson import Anderson as Anderson
    from implicit_models.equilibrium.broyden import Broyden as Broyden
    from implicit_models.equilibrium.cells import Carry as Carry
    from implicit_models.equilibrium.cells import CausalCell as CausalCell
    from implicit_models.equilibrium.cells import Cell as Cell
    from implicit_models.equilibrium.cells import SteppingCell as SteppingCell
    from implicit_models.equilibrium.cells import Trail as Trail
    from implicit_models.equilibrium.cells import WindowedCell as WindowedCell
    from implicit_models.equilibrium.gradients import Gradient as Gradient
    from implicit_models.equilibrium.gradients import ImplicitFunction as ImplicitFunction
    from implicit_models.equilibrium.gradients import Phantom as Phantom
    from implicit_models.equilibrium.gradients import Unrolled as Unrolled
    from implicit_models.equilibrium.iterate import find_fixed_point as find_fixed_point
    from implicit_models.equilibrium.jacobian import JacobianPenalty as JacobianPenalty
    from implicit_models.equilibrium.jacobian import spectral_radius as spectral_radius
    from implicit_models.equilibrium.jacobian import token_spectral_radius as token_spectral_radius
    from implicit_models.equilibrium.phase import Phase as Phase
    from implicit_models.equilibrium.phase import SearchSettings as SearchSettings
    from implicit_models.equilibrium.phase import bounded_phase as bounded_phase
    from implicit_models.equilibrium.phase import free_phase as free_phase
    from implicit_models.equilibrium.phase import search_phase as search_phase
    from implicit_models.equilibrium.solution import Result as Result
    from implicit_models.equilibrium.solution import Solution as Solution
    from implicit_models.equilibrium.solvers import BestSoFar as BestSoFar
    from implicit_models.equilibrium.solvers import Picard as Picard
    from implicit_models.equilibrium.solvers import Solver as Solver
    from implicit_models.equilibrium.stopping import FixedSteps as FixedSteps
    from implicit_models.equilibrium.stopping import ResidualBelow as ResidualBelow
    from implicit_models.equilibrium.stopping import Stopping as Stopping
    from implicit_models.equilibrium.stopping import absolute_residual as absolute_residual
    from implicit_models.equilibrium.stopping import relative_residual as relative_residual
    from implicit_models.equilibrium.window import Window as Window

__getattr__, __dir__ = lazy_names(__name__)
