"""What solvers and gradients are called in parameters and configurations; imports no torch.

`phase.SOLVERS` and `phase.GRADIENTS` have what each name means.
"""

from typing import Literal

SolverName = Literal["picard", "anderson", "broyden"]

#: Those that compute each token for itself (`Solver.is_tokenwise`); with any other, and with
#: best_so_far, a search is over whole sequences.
TOKENWISE_SOLVERS: tuple[SolverName, ...] = ("picard",)

GradientName = Literal["phantom", "unrolled", "implicit_function"]
