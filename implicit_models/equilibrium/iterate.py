"""The one loop that searches fixed points."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.equilibrium.cells import Cell
from implicit_models.equilibrium.checks import check_count
from implicit_models.equilibrium.search import Search
from implicit_models.equilibrium.solution import Solution
from implicit_models.equilibrium.solvers import Solver
from implicit_models.equilibrium.stopping import Stopping
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
    is_prefix: bool = False,
    sync_every: int | None = None,
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
    is_prefix
        Whether more tokens may follow in another piece, which then reads the carry after these.
        A window waits until the last of them have settled as well as the first.
    sync_every
        Evaluations after which the host asks the device which sequences have ended, and waits for
        the answer. In between, those that have ended rest in the batch, with the same result;
        tokens in a window are iterated on. None asks after every evaluation on a CPU, and after
        every fourth elsewhere.
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
    if sync_every is None:
        sync_every = 1 if start.device.type == "cpu" else 4
    check_count("sync_every", sync_every)
    if observe is not None:
        sync_every = 1
    search: Search
    if window is None:
        search = WholeSequences(cell, start, solver, stopping, lengths, sync_every)
    else:
        search = SlidingWindow(
            cell, start, solver, stopping, window, lengths, is_prefix, sync_every
        )

    state = solver.begin(search.value)
    observed = torch.full_like(start[..., 0], torch.nan) if observe else None
    step = 0
    while not search.has_ended(step):
        step += 1
        following, residual, state = solver.advance(state, search)
        if observe is not None and observed is not None:
            search.write_residual(residual, observed)
            observe(step, observed.clone())
        staying = search.accept(step, following, residual, state)
        if staying is not None:
            state = state.select(staying)
    return search.solution()


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
