"""The one loop that searches fixed points."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.cells import CausalCell, Cell, SteppingCell
from implicit_models.equilibrium.checks import check_count
from implicit_models.equilibrium.solution import Solution
from implicit_models.equilibrium.solvers import Picard, Solver
from implicit_models.equilibrium.stopping import (
    FixedSteps,
    ResidualBelow,
    Stopping,
    relative_residual,
)
from implicit_models.equilibrium.whole import WholeSequences
from implicit_models.equilibrium.window import SlidingWindow, Window

Observer = Callable[[int, Float[Tensor, "B L"]], None]


@torch.no_grad()
def find_fixed_point(
    cell: Cell,
    start: Float[Tensor, "B L D"],
    solver: Solver,
    stopping: Stopping,
    *,
    window: Window | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    goes_on: bool = False,
    look_every: int | None = None,
    observe: Observer | None = None,
) -> Solution:
    """Iterate the cell from ``start``, without gradient, until every sequence has ended.

    Without a window a sequence is iterated as a whole and judged by its worst token. With one,
    its tokens are iterated a window at a time and judged one by one; the cell must be causal and
    the solver tokenwise.

    A sequence that has ended leaves the batch, and its cost ends there. What else is in the batch
    never enters a sequence's arithmetic or its stopping. Its result is therefore the same to the
    bit as long as the cell's own arithmetic does not depend on the number of rows it is given:
    always for elementwise and batched products, and for matrix products that flatten the batch,
    as those of the stacks here, as long as as many sequences are at work at the same steps.
    Otherwise a library may sum in another order, and results agree to rounding.

    Parameters
    ----------
    lengths
        Each sequence's number of tokens, where the rest is padding on the right. Padding is not
        judged. None where there is none.
    goes_on
        Whether more tokens may follow in another piece, which then reads the carry after these.
        A window waits until the last of them have settled as well as the first.
    look_every
        Evaluations between two looks at who has ended, for each of which the host waits for the
        device. In between, sequences that have ended rest in the batch, with the same result;
        tokens in a window are iterated until the next look. None looks after every evaluation on a
        CPU, and after every fourth elsewhere.
    observe
        Called after each evaluation with the number of evaluations so far and the residual of
        every token; one that has ended shows its last one, padding and what is not reached yet
        show NaN.

    Raises
    ------
    ValueError
        Where ``start`` is no batch of sequences, the cell changes the shape, dtype or device of its
        state, ``lengths`` does not fit, or a window meets a cell, solver or stopping rule that
        knows none.
    """
    _check_start(start)
    batch, length = start.shape[:2]
    if lengths is not None:
        _check_lengths(lengths, batch, length)
    if look_every is None:
        look_every = 1 if start.device.type == "cpu" else 4
    check_count("look_every", look_every)
    if observe is not None:
        look_every = 1
    if window is None:
        search = WholeSequences(cell, start, solver, stopping, lengths, look_every)
    else:
        cell, stopping = _windowed(cell, solver, stopping, window)
        search = SlidingWindow(cell, stopping, start, window, lengths, goes_on, look_every)

    damping = _damping_of_a_plain_step(cell, solver, stopping)
    state = solver.begin(search.value)
    observed = torch.full_like(start[..., 0], torch.nan) if observe else None
    step = 0
    while not search.has_ended(step):
        step += 1
        if damping is not None:
            following, residual = search.iterate(damping)
        else:
            value = search.value
            evaluated = search.evaluate()
            residual = stopping.measure(value, evaluated)
            following, state = solver.step(state, value, evaluated, residual)
        if observe is not None and observed is not None:
            search.show(residual, observed)
            observe(step, observed.clone())
        left = search.accept(step, following, residual, state)
        if left is not None:
            state = state.select(left)
    return search.solution()


def _damping_of_a_plain_step(cell: Cell, solver: Solver, stopping: Stopping) -> float | None:
    """Return the damping, where the cell can take the whole step by itself."""
    if not isinstance(cell, SteppingCell) or not isinstance(solver, Picard):
        return None
    return solver.damping if stopping.measure is relative_residual else None


def _check_start(start: Tensor) -> None:
    if start.dim() != 3 or not start.is_floating_point():
        raise ValueError(
            f"start has the shape {tuple(start.shape)} and the dtype {start.dtype}; it must be "
            "(B, L, D), of floating-point numbers"
        )


def _check_lengths(lengths: Tensor, batch: int, length: int) -> None:
    if lengths.shape != (batch,):
        raise ValueError(f"lengths has the shape {tuple(lengths.shape)}; it must be ({batch},)")
    if batch and not 0 <= int(lengths.min()) <= int(lengths.max()) <= length:
        raise ValueError(
            f"lengths lie between {int(lengths.min())} and {int(lengths.max())}; they must lie "
            f"between 0 and the number of tokens, {length}"
        )


def _windowed(
    cell: Cell, solver: Solver, stopping: Stopping, window: Window
) -> tuple[CausalCell, ResidualBelow]:
    if not isinstance(cell, CausalCell):
        raise ValueError(
            f"a window needs a CausalCell; {type(cell).__name__} has no method `window`"
        )
    if not solver.is_tokenwise:
        raise ValueError(
            f"the solver {solver} combines all tokens of a sequence, but those in a window change; "
            "a window takes Picard"
        )
    if isinstance(stopping, FixedSteps):
        raise ValueError(
            "a window commits tokens as they converge; its stopping rule must be ResidualBelow, "
            f"not {stopping}"
        )
    if window.patience > stopping.max_steps:
        raise ValueError(
            f"patience is {window.patience}; it must be at most max_steps, {stopping.max_steps}, "
            "or no token could converge"
        )
    return cell, stopping
