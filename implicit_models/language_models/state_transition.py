"""Theorem 1, executable: the Jacobian of an implicit Mamba2's state transition, in two ways.

A state space alone moves its state by a diagonal map: ``h_t = Lambda_t h_{t-1} + u_t``. Where
``Lambda`` and ``u`` depend on the fixed point z*, and z* on ``h_{t-1}``, the transition is neither
linear nor diagonal, which is what tracking a state needs (Schöne et al. 2025, Theorem 1). Here its
Jacobian is taken from the model's own forward pass, and again from the implicit function theorem.

Shapes: S entries of the states of all blocks, flattened and joined in the blocks' order; all of
them unless ``entries`` picks some, the rest then being held fixed. The carry's convolution tails
are held fixed too. One token is the theorem's case; with more, ``h_t`` is the state after them.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from implicit_models.backbones.mamba2 import Mamba2Carry
from implicit_models.backbones.stack import StackCarry
from implicit_models.equilibrium.gradients import ImplicitFunction
from implicit_models.equilibrium.iterate import find_fixed_point
from implicit_models.equilibrium.phase import Phase
from implicit_models.equilibrium.solution import Result, Solution
from implicit_models.equilibrium.solvers import Picard
from implicit_models.equilibrium.stopping import ResidualBelow
from implicit_models.language_models.cache import CarryCache
from implicit_models.language_models.modelling import ImplicitForCausalLM

_SEARCH = Picard(0.7), ResidualBelow(1e-13, max_steps=5000)
_BETWEEN_FIXED_POINTS = Phase(*_SEARCH, ImplicitFunction(*_SEARCH))


@dataclass(frozen=True, kw_only=True)
class SampledTransition:
    """The transition of some entries of the first block's state, all others held fixed.

    Attributes
    ----------
    jacobian
        By differentiating the model.
    formula
        By `implicit_function_jacobian`; None of an explicit model.
    state_size
        How many entries that state has, S of which are here, evenly over it.
    """

    jacobian: Float[Tensor, "S S"]
    formula: Float[Tensor, "S S"] | None
    state_size: int


def sampled_transition(
    model: ImplicitForCausalLM, tokens: Int[Tensor, "1 L"], num_samples: int = 128
) -> SampledTransition:
    """Take what a sequence's last token does to the state that a model has after the others.

    An implicit model goes from fixed point to fixed point, with residuals of 1e-13 at most, which
    few models reach in float32.

    Parameters
    ----------
    tokens
        On the model's device.
    num_samples
        Entries to take, about: the step from one to the next is whole and odd.

    Raises
    ------
    ValueError
        As `state_transition_jacobian`.
    """
    phase = _BETWEEN_FIXED_POINTS if model.is_implicit else None
    before, last = tokens[:, :-1], tokens[:, -1:]
    with torch.no_grad():
        carry = model(before, cache=model.initial_cache(1), phase=phase).cache.carry
    size = _blocks(carry)[0].state.numel()
    # An odd step sees all places of a channel, of which there are 2, 4, 8, ... as a rule.
    step = max(1, size // num_samples) | 1
    entries = torch.arange(0, size, step, device=tokens.device)
    one = model, last, carry
    return SampledTransition(
        jacobian=state_transition_jacobian(*one, phase, entries),
        formula=None if phase is None else implicit_function_jacobian(*one, phase, entries),
        state_size=size,
    )


def state_transition_jacobian(
    model: ImplicitForCausalLM,
    tokens: Int[Tensor, "1 L"],
    carry: StackCarry,
    phase: Phase | None = None,
    entries: Int[Tensor, " S"] | None = None,
) -> Float[Tensor, "S S"]:
    """Differentiate the forward pass: row i is the gradient of the new state's entry i.

    The phase's gradient decides what is differentiated: `ImplicitFunction`, or `Unrolled` with
    many steps after a tight search, give the transition between fixed points of Theorem 1;
    `Unrolled` with few steps from zero gives the bounded phase's transition. It is taken in one
    backward pass, of a batch that repeats the sequence S times.

    Parameters
    ----------
    tokens, carry
        Of one sequence; the carry before the tokens is that of
        `ImplicitForCausalLM.initial_cache` or of an output's cache.
    phase
        None for an explicit model, of which one block gives an exactly diagonal Jacobian.
    entries
        Indices into the flattened states. None takes all.

    Raises
    ------
    ValueError
        Where an implicit model's phase has no gradient, its search ends before its tolerance, or
        the model has no state.
    """
    if phase is not None and phase.gradient is None:
        raise ValueError(
            "the phase's gradient is None; take ImplicitFunction, or Unrolled with many steps"
        )
    states = _flat_states(carry).detach()
    if entries is None:
        entries = torch.arange(states.shape[1], device=states.device)
    copies = torch.zeros_like(entries)
    before = states[copies].requires_grad_()
    with torch.enable_grad():
        cache = CarryCache(_with_states(carry.select(copies), before))
        output = model(tokens[copies], cache=cache, phase=phase)
    if phase is not None:
        _check_converged(output.search, phase)
    after = _flat_states(output.cache.carry)[:, entries]
    identity = torch.eye(len(entries), dtype=after.dtype, device=after.device)
    return torch.autograd.grad(after, before, identity)[0][:, entries]


def implicit_function_jacobian(
    model: ImplicitForCausalLM,
    tokens: Int[Tensor, "1 L"],
    carry: StackCarry,
    phase: Phase,
    entries: Int[Tensor, " S"] | None = None,
) -> Float[Tensor, "S S"]:
    """Evaluate Theorem 1's formula at the fixed point that ``phase`` searches.

    With ``z' = f(z, h)`` the cell and ``F(z, h)`` the state after it::

        dh_t / dh_{t-1} = dF/dh + dF/dz (1 - df/dz)^-1 df/dh

    The partial derivatives are dense, and the system is solved directly:
    for some hundred entries and tokens times width. Nothing of the phase but its search is used.
    Parameters as in `state_transition_jacobian`.

    Raises
    ------
    ValueError
        Where the model is explicit or has no state, or the search ends before its tolerance.
    """
    cell, start = model.cell(tokens, carry)
    found = find_fixed_point(cell, start, phase.solver, phase.stopping, window=phase.window)
    _check_converged(found, phase)

    states = _flat_states(carry)[0].detach()
    if entries is None:
        entries = torch.arange(len(states), device=states.device)

    def evaluate(value: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        before = states.index_copy(0, entries, chosen)
        cell, _ = model.cell(tokens, _with_states(carry, before[None]))
        hidden, after = cell.advance(value.view_as(start))
        return hidden.flatten(), _flat_states(after)[0, entries]

    point = found.value.flatten(), states[entries]
    (value_by_value, value_by_state), (state_by_value, state_by_state) = torch.func.jacrev(
        evaluate, argnums=(0, 1)
    )(*point)
    identity = torch.eye(len(value_by_value), dtype=start.dtype, device=start.device)
    fixed_point_by_state = torch.linalg.solve(identity - value_by_value, value_by_state)
    return (state_by_state + state_by_value @ fixed_point_by_state).detach()


def off_diagonal_share(jacobian: Float[Tensor, "S S"]) -> float:
    """Return the share of a Jacobian's squared Frobenius norm that lies off its diagonal.

    0 for a diagonal matrix; NaN for zero.
    """
    squared = jacobian.square()
    off_diagonal = squared - squared.diagonal().diag()
    return (off_diagonal.sum() / squared.sum()).item()


def _flat_states(carry: StackCarry) -> Float[Tensor, "B S"]:
    return torch.cat([block.state.flatten(1) for block in _blocks(carry)], dim=1)


def _with_states(carry: StackCarry, states: Float[Tensor, "B S"]) -> StackCarry:
    """Put flattened states into a carry, whose convolution tails stay, without gradient."""
    blocks = _blocks(carry)
    pieces = states.split([block.state[0].numel() for block in blocks], dim=1)
    return StackCarry(
        tuple(
            Mamba2Carry(block.convolution.detach(), piece.view_as(block.state))
            for block, piece in zip(blocks, pieces, strict=True)
        )
    )


def _blocks(carry: StackCarry) -> list[Mamba2Carry]:
    blocks = [block for block in carry.blocks if isinstance(block, Mamba2Carry)]
    if len(blocks) < len(carry.blocks):
        raise ValueError("the model is no Mamba2; the theorem speaks of a state")
    return blocks


def _check_converged(found: Solution, phase: Phase) -> None:
    if not phase.stopping.can_converge or (found.result == Result.CONVERGED).all():
        return
    raise ValueError(
        f"the search ended after {int(found.steps.max())} steps with a residual of "
        f"{float(found.residual.max()):.1e}; the theorem speaks of a fixed point: give the phase "
        "more steps, more damping, or a cell that contracts"
    )
