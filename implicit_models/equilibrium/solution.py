"""What a search for a fixed point returns."""

from dataclasses import dataclass
from enum import IntEnum

from jaxtyping import Float, Int, UInt8
from torch import Tensor


class Result(IntEnum):
    """How the search of one sequence ended."""

    CONVERGED = 0
    OUT_OF_STEPS = 1
    NON_FINITE = 2


@dataclass(frozen=True)
class Solution:
    """A search's outcome, sequence by sequence.

    Attributes
    ----------
    value
        The last iterate: (B, L, D). A sequence that became non-finite while it was watched keeps
        its last finite one.
    steps
        Evaluations of the cell that the sequence took part in before it ended.
    residual
        Relative residual of the last evaluation: the largest over the tokens of
        ``|f(z) - z| / |f(z)|``. NaN where nothing was evaluated.
    result
        A `Result` for each sequence.

    Where tokens were searched one by one, the last three are (B, L) instead of (B,).
    """

    value: Float[Tensor, "B L D"]
    steps: Int[Tensor, "B ..."]
    residual: Float[Tensor, "B ..."]
    result: UInt8[Tensor, "B ..."]
