"""What a training costs: FLOPs from the iterations really made; time and memory of anything."""

from collections import Counter
from collections.abc import Iterable

from implicit_models.cost.meter import Measurement
from implicit_models.equilibrium.phase import Phase
from implicit_models.families.costs import ModelFlops, Work

# A gradient costs two products for each of the forward pass: one for either factor.
_WITH_GRADIENT = 3

# A training does not keep how often its windows took up a new carry: where a batch's sequences
# slide at different times it is, as measured, mostly once in one and a half to three evaluations.
_EVALUATIONS_PER_CARRY = 2


def step_flops(
    model: ModelFlops,
    phase: Phase | None,
    *,
    length: int,
    num_sequences: int,
    search_evaluations: float = 0.0,
    checkpointing: bool = False,
    passes_carry: bool = False,
) -> float:
    """Return the FLOPs of a training step: search, forward and backward pass, penalty, carry.

    Of a gradient that solves in the backward pass (`ImplicitFunction`) they are what it takes at
    most: the pass does not tell how long it solved.

    Parameters
    ----------
    phase
        The step's; None for an explicit model.
    search_evaluations
        Evaluations of the cell by token that the searches of all sequences made, those with
        gradient not included: the sum of `Solution.token_evaluations`.
    checkpointing
        Whether blocks are evaluated again in the backward pass.
    passes_carry
        Whether sequences go on from a carry and are gone on from in the next step: the carry after
        them comes from what an explicit model computes anyway, and from one more evaluation of an
        implicit one's cell.

    Raises
    ------
    ValueError
        Where the phase takes no gradient.
    """
    evaluation = model.stack.evaluation(length, before=0 if passes_carry else None)
    again = evaluation.total - model.stack.last_products(length) if checkpointing else 0.0
    differentiated, penalty, window = _WITH_GRADIENT * evaluation.total + again, 0.0, None
    carry = model.stack.carry(length) if passes_carry else 0.0
    if passes_carry and phase is not None:
        carry += evaluation.total
    if phase is not None:
        gradient = phase.gradient
        if gradient is None:
            raise ValueError("the phase's gradient is None; a training step takes one")
        differentiated *= gradient.num_steps
        differentiated += gradient.num_repeated * evaluation.total
        differentiated += gradient.max_products * (_product_flops(evaluation) + again)
        window = phase.window.width if phase.window is not None else None
        if phase.penalty is not None:
            penalty = _penalty_flops(evaluation, phase.penalty.num_samples)
    once = length * (model.injection + model.head) * _WITH_GRADIENT
    searched = evaluation.total if window is None else _window_flops(model, length, window)
    search = search_evaluations / length * searched
    return num_sequences * (once + differentiated + penalty + carry) + search


def training_flops(
    model: ModelFlops,
    phase: Phase | None,
    *,
    lengths: Iterable[int],
    batch_size: int,
    search_evaluations: float = 0.0,
    checkpointing: bool = False,
    passes_carry: bool = False,
) -> float:
    """Return the FLOPs of training steps that share a phase; parameters as in `step_flops`.

    Validation is not among them.

    Parameters
    ----------
    lengths
        Of each step's sequences.
    search_evaluations
        Of all steps; each step is taken to have made as many of them for a token as any other.
    """
    counts = Counter(lengths)
    num_tokens = batch_size * sum(length * count for length, count in counts.items())
    per_token = search_evaluations / num_tokens if num_tokens else 0.0
    return sum(
        count
        * step_flops(
            model,
            phase,
            length=length,
            num_sequences=batch_size,
            search_evaluations=per_token * batch_size * length,
            checkpointing=checkpointing,
            passes_carry=passes_carry,
        )
        for length, count in counts.items()
    )


def cost(
    flops: float | None, num_tokens: int, measured: Measurement
) -> dict[str, float | int | None]:
    """Return the costs of a training or an evaluation, None for those that nobody knows."""
    seconds = measured.seconds
    return {
        "flops": flops,
        "flops_per_token": None if flops is None or not num_tokens else flops / num_tokens,
        "seconds": seconds,
        "tokens_per_second": num_tokens / seconds if seconds else None,
        "peak_memory_bytes": measured.peak_memory_bytes,
        "energy_joules": measured.energy_joules,
    }


def _window_flops(model: ModelFlops, length: int, window: int) -> float:
    """Return the FLOPs of evaluating each token of a text once in a search through a window."""
    stack = model.stack
    starts = range(0, length, window)
    each = sum(stack.evaluation(min(window, length - n), before=n).total for n in starts)
    return each + stack.carry(length) / _EVALUATIONS_PER_CARRY


def _penalty_flops(evaluation: Work, num_samples: int) -> float:
    """Return the FLOPs of a Jacobian penalty and of its gradient.

    One evaluation is differentiated as any other, and so is each sample's product.
    """
    sample = _WITH_GRADIENT * _product_flops(evaluation)
    return _WITH_GRADIENT * evaluation.total + num_samples * sample


def _product_flops(evaluation: Work) -> float:
    """Return the FLOPs of a vector-Jacobian product: the evaluation's, no weight's gradient."""
    return evaluation.weights + 2 * evaluation.mixing
